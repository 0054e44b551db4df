"""Servers and workers of a job as plain processes of this machine."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence

from ..core.errors import LaunchError
from . import env
from .free_port import free_port
from .job_watch import Ended, JobPlan, Lost, News, Post, Said
from .script_process import ScriptProcess
from .server_list import ServerList
from .worker_variables import Spot, worker_variables

_HOST = "127.0.0.1"
_SAVE_S = 3600.0  # for a server to save all its rows


class LocalCrew:
    """`server` is the command of a server; it gets --shard, --listen and so on.

    Nobody restarts a server here: if one dies, the job ends. That is for Ray, or a supervisor.
    """

    def __init__(self, plan: JobPlan, server: Sequence[str]) -> None:
        self._plan, self._command = plan, list(server)
        self._servers: list[ScriptProcess] = []
        self._workers: list[ScriptProcess] = []
        self._watching: list[threading.Thread] = []
        self._complaints: list[str] = []
        self._stopping = False

    def start(self, post: Post) -> None:
        """All servers at once, then workers."""
        environ = env.current()
        names = [f"{i}/{self._plan.servers}" for i in range(self._plan.servers)]
        for name in names:
            self._servers.append(ScriptProcess(self._server_command(name), environ))
        addresses = []
        for name, server in zip(names, self._servers, strict=True):
            addresses.append(_address_of(name, server))
            post(News(f"server {name} listens at {addresses[-1]} (process {server.pid})."))
            self._watch(self._watch_server, name, server, post)
        spots = [Spot("here", _HOST, free_port(_HOST))] * self._plan.workers
        servers = ServerList(tuple(addresses), self._plan.keys)
        for rank, told in enumerate(worker_variables(spots, servers)):
            command = [sys.executable, *self._plan.script]
            worker = ScriptProcess(command, {**environ, **told})
            self._workers.append(worker)
            self._watch(_watch_worker, rank, worker, post)

    def _server_command(self, name: str) -> list[str]:
        command = [*self._command, "--shard", name, "--listen", f"{_HOST}:0"]
        if self._plan.checkpoint is not None:
            command += ["--checkpoint", str(self._plan.checkpoint), "--durability", "log"]
        if self._plan.keys is not None:
            command += ["--keys", str(self._plan.keys)]
        return command

    def _watch(self, target: object, *args: object) -> None:
        assert callable(target)
        thread = threading.Thread(target=target, args=args, daemon=True)
        thread.start()
        self._watching.append(thread)

    def _watch_server(self, name: str, server: ScriptProcess, post: Post) -> None:
        while True:
            told = server.next()
            for _, line in told.lines:
                post(News(f"server {name}: {line}"))
            if told.status is not None:
                break
        if not self._stopping:
            post(Lost(f"server {name} ended with status {told.status}; the job ends."))
        elif told.status:
            self._complaints.append(f"server {name} ended with status {told.status}; is it saved?")

    def stop_workers(self) -> None:
        """All at once."""
        for worker in self._workers:
            self._watch(worker.stop)

    def stop_servers(self) -> list[str]:
        """They save, each for itself."""
        self._stopping = True
        for server in self._servers:
            self._watch(server.stop, _SAVE_S)
        for thread in self._watching:
            thread.join()
        return self._complaints

    def close(self) -> None:
        """Nothing is left behind."""
        self._stopping = True
        for process in (*self._workers, *self._servers):
            process.stop(0)


def _address_of(name: str, server: ScriptProcess) -> str:
    """The line that a server says when clients may come."""
    lines: list[str] = []
    while True:
        told = server.next()
        for is_error, line in told.lines:
            if not is_error:
                return line
            lines.append(line)
        if told.status is not None:
            raise LaunchError(f"server {name} did not start: {' '.join(lines)}")


def _watch_worker(rank: int, worker: ScriptProcess, post: Post) -> None:
    while True:
        told = worker.next()
        for is_error, text in told.lines:
            post(Said(rank, is_error, text))
        if told.status is not None:
            post(Ended(rank, told.status))
            return
