"""Starts real server processes and gives their addresses; every one is reaped."""

from __future__ import annotations

import json
import multiprocessing
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from hedgerow.ps.server import Server, ServerPlan, serve
from hedgerow.ps.service import TableService
from hedgerow.tables.config import TableConfig

START_S = 60.0
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["hedgerow.ps.server", "zmq", "pyarrow", __name__])


class ServerProcess:
    """A server in a process of its own; `restart` brings it back at the same address.

    It is forked from a process that has imported everything, since a start takes seconds else.
    """

    def __init__(self, shard: int, shards: int, **settings: Any) -> None:
        self._shard, self._settings = f"{shard}/{shards}", settings
        self.address = settings.pop("listen", "127.0.0.1:0")
        self._start()

    def _start(self) -> None:
        ours, theirs = FORKS.Pipe(duplex=False)
        plan = ServerPlan.of(self._shard, self.address, **self._settings)
        self.process = FORKS.Process(target=_serve, args=(plan, theirs), daemon=True)
        self.process.start()
        theirs.close()
        with ours:
            assert ours.poll(START_S), "a server did not start in time"
            told = ours.recv()
        if isinstance(told, Exception):
            self.process.join(START_S)
            raise told
        self.address = told

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def kill(self) -> None:
        """As a crash: kill -9."""
        self.process.kill()
        self.process.join(START_S)

    def terminate(self) -> int | None:
        """As a supervisor; the status it leaves with."""
        self.process.terminate()
        self.process.join(START_S)
        return self.process.exitcode

    def restart(self) -> None:
        """Once it is gone."""
        before = self.address
        self._start()
        assert self.address == before

    def crash(self) -> None:
        """Kills it and brings it back."""
        self.kill()
        self.restart()

    def reap(self) -> None:
        if self.process.is_alive():
            self.kill()
        self.process.close()


def _serve(plan: ServerPlan, told: Connection) -> None:
    try:
        serve(plan, told.send)
    except Exception as error:
        told.send(error)
        raise


@contextmanager
def server(shard: int = 0, shards: int = 1, **settings: Any) -> Iterator[ServerProcess]:
    """One server process; `settings` are those of a `ServerPlan`."""
    started = ServerProcess(shard, shards, **settings)
    try:
        yield started
    finally:
        started.reap()


@contextmanager
def server_thread(**settings: Any) -> Iterator[Server]:
    """A server in a thread of this process: the same sockets, without the start of a process."""
    started = Server(settings.pop("service", None) or TableService(), **settings)
    thread = threading.Thread(target=started.run)
    thread.start()
    try:
        yield started
    finally:
        started.stop()
        thread.join()
        started.close()


@contextmanager
def servers(n: int, **settings: Any) -> Iterator[dict[str, list[str]]]:
    """n real servers and their addresses, as `{"ps": [address, ...]}`."""
    started: list[ServerProcess] = []
    try:
        started.extend(ServerProcess(i, n, **settings) for i in range(n))
        yield {"ps": [one.address for one in started]}
    finally:
        for one in started:
            one.reap()


def config_file(folder: Path, configs: Sequence[TableConfig]) -> Path:
    """Tables for `hedgerow ps --tables`."""
    path = folder / "tables.json"
    path.write_text(json.dumps([config.to_dict() for config in configs]))
    return path


def until(condition: object, deadline_s: float = 30.0) -> None:
    """Waits until a function gives something true."""
    assert callable(condition)
    limit = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < limit, "it did not happen in time"
        time.sleep(0.005)
