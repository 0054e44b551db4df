"""Runs the servers and workers of a job as processes of this machine."""

from __future__ import annotations

import os
import queue
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from ..core.errors import LaunchError
from . import env
from .job_variables import ProcessAddress, ServerList, worker_variables
from .job_watch import JobLost, JobMessage, JobSpec, Post, WorkerEnded, WorkerLine

_SIGNALLED = 128  # plus the signal's number, as shells do
_GRACE_S = 10.0  # between SIGTERM and SIGKILL
_MOST_LINES = 1000  # per ProcessOutput, and waiting


@dataclass(frozen=True, slots=True)
class ProcessOutput:
    """New lines of output, each with whether it is from stderr; and the status after the end."""

    lines: tuple[tuple[bool, str], ...] = ()
    status: int | None = None


class ScriptProcess:
    """A running command. Its output waits until `next` takes it; a full queue blocks the process.

    It has a session of its own, so that Ctrl-C in a terminal reaches only the launcher, and so
    that all processes that it started end with it. One thread may take output while another stops
    the process.
    """

    def __init__(
        self, command: Sequence[str], environ: Mapping[str, str], cwd: str | None = None
    ) -> None:
        self._process = subprocess.Popen(
            list(command),
            env=dict(environ),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._lines: queue.Queue[tuple[bool, str] | None] = queue.Queue(_MOST_LINES)
        self._open_pipes = 2
        for pipe, is_error in ((self._process.stdout, False), (self._process.stderr, True)):
            assert pipe is not None
            threading.Thread(target=self._read, args=(pipe, is_error), daemon=True).start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def _read(self, pipe: IO[bytes], is_error: bool) -> None:
        with pipe:
            for line in pipe:
                self._lines.put((is_error, line.decode(errors="replace").rstrip("\r\n")))
        self._lines.put(None)

    def next(self) -> ProcessOutput:
        """Waits for output or the end of the process, and returns all new lines."""
        found: list[tuple[bool, str]] = []
        while self._open_pipes and len(found) < _MOST_LINES:
            try:
                line = self._lines.get(block=not found)
            except queue.Empty:
                return ProcessOutput(tuple(found))
            if line is None:
                self._open_pipes -= 1
            else:
                found.append(line)
        if self._open_pipes:
            return ProcessOutput(tuple(found))
        status = self._process.wait()
        self._signal_all(signal.SIGKILL)  # ends the processes that it left running
        return ProcessOutput(tuple(found), status if status >= 0 else _SIGNALLED - status)

    def stop(self, grace_s: float = _GRACE_S) -> None:
        """Asks the process to end, and kills it after `grace_s` seconds."""
        self._signal_all(signal.SIGTERM)
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._signal_all(signal.SIGKILL)

    def _signal_all(self, number: int) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return  # all of them have ended


# Below Linux' ports for outgoing connections (32768..60999), so that none of them, not even a
# client's attempt to reconnect, can take the port of a server that is being restarted.
_FIRST_PORT, _LAST_PORT = 15000, 29999
_TRIES = 200


def free_port(host: str, avoid: Collection[int] = ()) -> int:
    """Returns a port of this machine on which no process listens, and which is not in `avoid`.

    >>> 15000 <= free_port("127.0.0.1") < 30000
    True
    """
    for _ in range(_TRIES):
        port = random.SystemRandom().randint(_FIRST_PORT, _LAST_PORT)
        if port not in avoid and _is_free(host, port):
            return port
    raise LaunchError(
        f"{_TRIES} ports of {host} between {_FIRST_PORT} and {_LAST_PORT} are all taken."
    )


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


_HOST = "127.0.0.1"
_SAVE_S = 3600.0  # how long a server may take to save all its rows


class LocalProcesses:
    """The processes of a job on this machine; `server` is a server's command without its options.

    A server that dies is not restarted: the job ends. Use Ray or a supervisor for restarts.
    """

    def __init__(self, plan: JobSpec, server: Sequence[str]) -> None:
        self._plan, self._command = plan, list(server)
        self._servers: list[ScriptProcess] = []
        self._workers: list[ScriptProcess] = []
        self._watching: list[threading.Thread] = []
        self._complaints: list[str] = []
        self._stopping = False

    def start(self, post: Post) -> None:
        """Starts all servers at once, then all workers."""
        environ = env.current()
        names = [f"{i}/{self._plan.servers}" for i in range(self._plan.servers)]
        for name in names:
            self._servers.append(ScriptProcess(self._server_command(name), environ))
        addresses = []
        for name, server in zip(names, self._servers, strict=True):
            addresses.append(_address_of(name, server))
            post(JobMessage(f"server {name} listens at {addresses[-1]} (process {server.pid})."))
            self._watch(self._watch_server, name, server, post)
        spots = [ProcessAddress("here", _HOST, free_port(_HOST))] * self._plan.workers
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
                post(JobMessage(f"server {name}: {line}"))
            if told.status is not None:
                break
        if not self._stopping:
            post(JobLost(f"server {name} ended with status {told.status}; the job ends."))
        elif told.status:
            self._complaints.append(
                f"server {name} ended with status {told.status}; its rows may not be saved."
            )

    def stop_workers(self) -> None:
        """Stops all workers at once."""
        for worker in self._workers:
            self._watch(worker.stop)

    def stop_servers(self) -> list[str]:
        """Stops all servers, which save their rows, and returns errors as text."""
        self._stopping = True
        for server in self._servers:
            self._watch(server.stop, _SAVE_S)
        for thread in self._watching:
            thread.join()
        return self._complaints

    def close(self) -> None:
        """Kills all remaining processes."""
        self._stopping = True
        for process in (*self._workers, *self._servers):
            process.stop(0)


def _address_of(name: str, server: ScriptProcess) -> str:
    """Waits until a server listens, and returns the address, its first line of output."""
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
            post(WorkerLine(rank, is_error, text))
        if told.status is not None:
            post(WorkerEnded(rank, told.status))
            return
