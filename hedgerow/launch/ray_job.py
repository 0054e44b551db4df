"""Runs the servers and workers of a job as actors of a Ray cluster."""

from __future__ import annotations

import logging
import os
import pkgutil
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import LaunchError, MissingExtraError
from . import env
from .job_variables import ProcessAddress, ServerList, worker_variables
from .job_watch import FAILED, JobLost, JobMessage, JobSpec, Post, WorkerEnded, WorkerLine
from .local_job import ProcessOutput, ScriptProcess, free_port


def ray_library() -> Any:
    """Returns the module ray; raises an error that names the extra if it is missing."""
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError(f"--ray needs Ray ({error}); pip install hedgerow[ray].") from error
    return ray


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOrder:
    """One server: the dotted name of its function, its shard, its place and its folders."""

    entry: str
    shard: str
    spot: ProcessAddress
    folder: Path | None
    job: str
    keys: Path | None
    insecure: bool


def look_around(local: bool, avoid: Collection[int]) -> ProcessAddress:
    """Returns this node's id and address, and a free port on it."""
    ray = ray_library()
    host = "127.0.0.1" if local else ray.util.get_node_ip_address()
    return ProcessAddress(ray.get_runtime_context().get_node_id(), host, free_port(host, avoid))


class ServerActor:
    """An actor with one server. Ray restarts it after a crash, and `serve` recovers from the log.

    Methods run in threads of their own: `serve` during the server's whole life.
    """

    def __init__(self, order: ServerOrder) -> None:
        self._order = order
        self._address = ""
        self._stop: Callable[[], None] | None = None
        self._listens, self._gone = threading.Event(), threading.Event()

    def serve(self) -> None:
        """Serves at the server's fixed address until `stop`."""
        try:
            self._serve()
        finally:
            self._gone.set()
            self._listens.set()

    def _serve(self) -> None:
        order, spot = self._order, self._order.spot
        here = ray_library().get_runtime_context().get_node_id()
        if here != spot.machine:
            raise LaunchError(
                f"server {order.shard} was at {spot.host}, and that machine is gone; start the job "
                f"again: the rows are in its checkpoint folder."
            )
        # A dotted name, because this package must not import the servers' package.
        run = pkgutil.resolve_name(order.entry)
        run(
            order.shard,
            f"{spot.host}:{spot.port}",
            keys=order.keys,
            insecure=order.insecure,
            checkpoint=self._folder(),
            durability="log",
            tell=self._tell,
            stop_with=self._take_stop,
        )

    def _folder(self) -> Path:
        if self._order.folder is not None:
            return self._order.folder
        return Path(tempfile.gettempdir()) / f"hedgerow-{self._order.job}"

    def _tell(self, address: str) -> None:
        self._address = address
        self._listens.set()

    def _take_stop(self, stop: Callable[[], None]) -> None:
        self._stop = stop

    def where(self) -> tuple[str, int]:
        """Returns address and process id when clients may come; no address if the start failed."""
        self._listens.wait()
        return self._address, os.getpid()

    def stop(self) -> None:
        """Lets the server save and end; deletes its files if the job has no checkpoint folder."""
        if self._stop is not None and not self._gone.is_set():
            self._stop()
            self._gone.wait()
        if self._order.folder is None:
            shutil.rmtree(self._folder(), ignore_errors=True)


class WorkerActor:
    """An actor with one worker: the script as a process of its own."""

    def __init__(self, script: Sequence[str], told: Mapping[str, str], folder: str) -> None:
        if not Path(folder).is_dir():
            raise LaunchError(
                f"{folder}, where the job was started, is not on {told['MASTER_ADDR']}; every "
                f"machine of the cluster must have the script at the same place."
            )
        environ = {**env.current(), **told}
        self._process = ScriptProcess([sys.executable, *script], environ, folder)

    def next(self) -> ProcessOutput:
        """Returns the script's new output; waits for it."""
        return self._process.next()

    def stop(self) -> None:
        """Ends the script."""
        self._process.stop()


_NAMESPACE = "hedgerow"
_OBJECTS_BYTES = 2**27  # of Ray's object store, which is hardly used: rows are sent by ZeroMQ
_ROOM_S = 300.0  # how long to wait for resources: a cluster may have to grow first
_THREADS = 4  # of an actor: one for its work, others for calls meanwhile
_ADDRESS = "RAY_ADDRESS"
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # actors that reserve no GPU still see the GPUs
}


class RayCluster:
    """A reservation of `processes` cores on the cluster at RAY_ADDRESS, or on a local one."""

    def __init__(self, processes: int) -> None:
        self.ray = ray_library()
        self._processes = processes
        self._address = env.current().get(_ADDRESS)
        self._group: Any = None
        self.is_joined = False

    @property
    def is_own(self) -> bool:
        """Whether the cluster is started for the job and ends with it."""
        return not self._address

    @property
    def words(self) -> str:
        """The cluster's name in messages."""
        return "a Ray cluster of its own" if self.is_own else f"the Ray cluster at {self._address}"

    def join(self) -> None:
        """Connects; a cluster of its own accepts all processes, whatever the number of cores."""
        env.set_absent(_QUIET, env.current())
        common = {"namespace": _NAMESPACE, "log_to_driver": False, "logging_level": logging.ERROR}
        if self.is_own:
            self.ray.init(
                address="local",
                num_cpus=self._processes,
                include_dashboard=False,
                object_store_memory=_OBJECTS_BYTES,
                _node_ip_address="127.0.0.1",
                **common,
            )
        else:
            try:
                self.ray.init(address=self._address, **common)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise LaunchError(
                    f"{_ADDRESS} is {self._address!r}, and connecting to it failed: {error}. "
                    f"Is it up? If it asks for a token, RAY_AUTH_TOKEN must be the same on both "
                    f"sides."
                ) from error
        self.is_joined = True

    def place(
        self, look: Callable[[bool, Collection[int]], ProcessAddress]
    ) -> list[ProcessAddress]:
        """Returns a place for each process, spread over the machines; `look` runs at each place."""
        from ray.util.placement_group import placement_group

        bundles = [{"CPU": 1.0}] * self._processes
        self._group = placement_group(bundles, strategy="SPREAD")
        if not self._group.wait(_ROOM_S):
            there = self.ray.cluster_resources().get("CPU", 0)
            raise LaunchError(
                f"no room for {self._processes} processes of one core each on {self.words} within "
                f"{_ROOM_S:g} s; it has {there:g} cores in all. Add machines, or ask for less."
            )
        spots: list[ProcessAddress] = []
        for i in range(self._processes):
            task = self.ray.remote(look).options(num_cpus=0, **self._at(i))
            spots.append(self.ray.get(task.remote(self.is_own, {spot.port for spot in spots})))
        return spots

    def actor(self, kind: type, place: int, name: str, *, lasting: bool = False) -> Any:
        """Returns a factory of a named actor at a place; a lasting actor is restarted if lost."""
        return self.ray.remote(kind).options(
            name=name,
            num_cpus=1,
            max_concurrency=_THREADS,
            max_restarts=-1 if lasting else 0,
            **self._at(place),
        )

    def _at(self, place: int) -> dict[str, Any]:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        strategy = PlacementGroupSchedulingStrategy(
            placement_group=self._group, placement_group_bundle_index=place
        )
        return {"scheduling_strategy": strategy}

    def leave(self) -> None:
        """Frees the places; a cluster of its own ends."""
        from ray.util.placement_group import remove_placement_group

        if self._group is not None:
            remove_placement_group(self._group)
        self.ray.shutdown()
        self.is_joined = False


_STARTS = 5  # attempts in a row to restart a server that is lost before it listens
_SAVE_S, _END_S = 3600.0, 30.0
_RETURN_S, _PAUSE_S = 120.0, 0.2  # how long Ray may take to restart an actor, and between checks


class RayProcesses:
    """A job's processes on a Ray cluster; `entry` is the dotted name of a server's function."""

    def __init__(self, plan: JobSpec, entry: str) -> None:
        self._plan, self._entry = plan, entry
        self._job = secrets.token_hex(4)
        self._cluster = RayCluster(plan.servers + plan.workers)
        self._servers: list[Any] = []
        self._workers: list[Any] = []
        self._stopping = False

    def start(self, post: Post) -> None:
        """Starts servers where Ray has resources, and workers when all servers listen."""
        plan, cluster = self._plan, self._cluster
        cluster.join()
        post(JobMessage(f"job {self._job} on {cluster.words}."))
        spots = cluster.place(look_around)
        names = [f"{i}/{plan.servers}" for i in range(plan.servers)]
        for i, name in enumerate(names):
            order = ServerOrder(
                entry=self._entry,
                shard=name,
                spot=spots[i],
                folder=plan.checkpoint,
                job=self._job,
                keys=plan.keys,
                insecure=plan.insecure,
            )
            label = f"hedgerow-{self._job}-server-{i}"
            self._servers.append(cluster.actor(ServerActor, i, label, lasting=True).remote(order))
        addresses = self._first_lives(names, post)
        servers = ServerList(tuple(addresses), plan.keys)
        for rank, told in enumerate(worker_variables(spots[plan.servers :], servers)):
            label = f"hedgerow-{self._job}-worker-{rank}"
            made = cluster.actor(WorkerActor, plan.servers + rank, label)
            worker = made.remote(plan.script, told, str(Path.cwd()))
            self._workers.append(worker)
            _in_thread(self._watch_worker, rank, worker, post)

    def _first_lives(self, names: Sequence[str], post: Post) -> list[str]:
        """Starts all servers, returns their addresses, and watches the servers from then on."""
        get = self._cluster.ray.get
        lives = [server.serve.remote() for server in self._servers]
        waits = [server.where.remote() for server in self._servers]
        addresses = []
        for name, server, life, wait in zip(names, self._servers, lives, waits, strict=True):
            address, process = get(wait)
            if not address:
                why = _outcome(self._cluster.ray, life)
                raise LaunchError(f"server {name} did not start: {why or 'it was lost'}")
            addresses.append(address)
            post(JobMessage(f"server {name} listens at {address} (process {process})."))
            _in_thread(self._watch_server, name, server, life, post)
        return addresses

    def _watch_server(self, name: str, server: Any, life: Any, post: Post) -> None:
        """Makes a server serve again after Ray has restarted its actor."""
        ray, starts = self._cluster.ray, 0
        while True:
            why = _outcome(ray, life)
            if self._stopping:
                return
            if why is not None or starts == _STARTS:
                post(JobLost(f"server {name}: {why or f'lost {_STARTS} times in a row'}"))
                return
            post(JobMessage(f"server {name} was lost; Ray brings it back."))
            starts += 1
            try:
                self._await_return(server)
                life = server.serve.remote()
                address, process = ray.get(server.where.remote())
            except ray.exceptions.RayActorError:
                continue
            if address:
                starts = 0
                post(JobMessage(f"server {name} is back at {address} (process {process})."))

    def _await_return(self, server: Any) -> None:
        """Waits until an actor is restarted; until then its calls fail at once as unavailable."""
        ray, limit_s = self._cluster.ray, time.monotonic() + _RETURN_S
        while not self._stopping:
            try:
                ray.get(server.__ray_ready__.remote())
                return
            except ray.exceptions.ActorUnavailableError:
                if time.monotonic() >= limit_s:
                    raise
                time.sleep(_PAUSE_S)

    def _watch_worker(self, rank: int, worker: Any, post: Post) -> None:
        ray = self._cluster.ray
        while True:
            try:
                told = ray.get(worker.next.remote())
            except ray.exceptions.RayError as error:
                post(WorkerEnded(rank, FAILED, f"was lost ({_first_line(error)})"))
                return
            for is_error, text in told.lines:
                post(WorkerLine(rank, is_error, text))
            if told.status is not None:
                post(WorkerEnded(rank, told.status))
                return

    def stop_workers(self) -> None:
        """Stops all workers at once; each posts its end."""
        for worker in self._workers:
            worker.stop.remote()

    def stop_servers(self) -> list[str]:
        """Stops all servers at once, which save their rows, and returns errors as text."""
        self._stopping = True
        ray = self._cluster.ray
        stops = [server.stop.remote() for server in self._servers]
        complaints = []
        for i, stop in enumerate(stops):
            try:
                ray.get(stop, timeout=_SAVE_S)
            except (ray.exceptions.RayError, TimeoutError) as error:
                complaints.append(f"server {i}/{len(stops)} may not be saved: {_first_line(error)}")
        return complaints

    def close(self) -> None:
        """Ends workers, then servers, in order if time allows; a second call has no effect."""
        self._stopping = True
        if not self._cluster.is_joined:
            return
        ray = self._cluster.ray
        for actors in (self._workers, self._servers):
            stops = [actor.stop.remote() for actor in actors]
            if stops:
                ray.wait(stops, num_returns=len(stops), timeout=_END_S)
            for actor in actors:
                ray.kill(actor)
        self._cluster.leave()


def _in_thread(target: Any, *args: object) -> None:
    threading.Thread(target=target, args=args, daemon=True).start()


def _outcome(ray: Any, life: Any) -> str | None:
    """Returns None if the actor was lost, else why it serves no more."""
    try:
        ray.get(life)
    except ray.exceptions.RayActorError:
        return None
    except ray.exceptions.RayTaskError as error:
        return str(error.cause)
    except ray.exceptions.RayError as error:
        return _first_line(error)
    return "it ended without being stopped"


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
