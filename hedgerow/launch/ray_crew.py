"""Servers and workers of a job as actors of Ray."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..core.errors import LaunchError
from .job_watch import FAILED, Ended, JobPlan, Lost, News, Post, Said
from .ray_actors import ServerActor, ServerOrder, WorkerActor, look_around
from .ray_cluster import RayCluster
from .server_list import ServerList
from .worker_variables import worker_variables

_STARTS = 5  # of a server that is lost before it listens, one after the other
_SAVE_S, _END_S = 3600.0, 30.0
_RETURN_S, _PAUSE_S = 120.0, 0.2  # for Ray to start a lost actor again


class RayCrew:
    """`entry` is the dotted name of what runs one server."""

    def __init__(self, plan: JobPlan, entry: str) -> None:
        self._plan, self._entry = plan, entry
        self._job = secrets.token_hex(4)
        self._cluster = RayCluster(plan.servers + plan.workers)
        self._servers: list[Any] = []
        self._workers: list[Any] = []
        self._stopping = False

    def start(self, post: Post) -> None:
        """Servers where Ray has room for them; workers once all of them listen."""
        plan, cluster = self._plan, self._cluster
        cluster.join()
        post(News(f"job {self._job} on {cluster.words}."))
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
        """Starts all servers, waits for their addresses, and watches over them from then on."""
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
            post(News(f"server {name} listens at {address} (process {process})."))
            _in_thread(self._watch_server, name, server, life, post)
        return addresses

    def _watch_server(self, name: str, server: Any, life: Any, post: Post) -> None:
        """Ray brings the actor back; here it is told to serve again."""
        ray, starts = self._cluster.ray, 0
        while True:
            why = _outcome(ray, life)
            if self._stopping:
                return
            if why is not None or starts == _STARTS:
                post(Lost(f"server {name}: {why or f'lost {_STARTS} times in a row'}"))
                return
            post(News(f"server {name} was lost; Ray brings it back."))
            starts += 1
            try:
                self._await_return(server)
                life = server.serve.remote()
                address, process = ray.get(server.where.remote())
            except ray.exceptions.RayActorError:
                continue
            if address:
                starts = 0
                post(News(f"server {name} is back at {address} (process {process})."))

    def _await_return(self, server: Any) -> None:
        """An actor that Ray is about to start answers at once that it is not there yet."""
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
                post(Ended(rank, FAILED, f"was lost ({_first_line(error)})"))
                return
            for is_error, text in told.lines:
                post(Said(rank, is_error, text))
            if told.status is not None:
                post(Ended(rank, told.status))
                return

    def stop_workers(self) -> None:
        """All at once; they post that they ended."""
        for worker in self._workers:
            worker.stop.remote()

    def stop_servers(self) -> list[str]:
        """They save, all at once."""
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
        """Workers first, then servers, in order if there is time; a second time does nothing."""
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
    """None if the actor was lost; else why it serves no more."""
    try:
        ray.get(life)
    except ray.exceptions.RayActorError:
        return None
    except ray.exceptions.RayTaskError as error:
        return str(error.cause)
    except ray.exceptions.RayError as error:
        return _first_line(error)
    return "it ended, and nobody told it to"


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
