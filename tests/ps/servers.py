"""Starts real server processes and gives their addresses; every one is reaped."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hedgerow.ps.server import Server
from hedgerow.ps.service import Service
from hedgerow.tables.config import TableConfig

START_S = 60.0


class ServerProcess:
    """One `hedgerow ps`; `restart` brings it back at the same address."""

    def __init__(self, shard: int, shards: int, *options: str, listen: str = "127.0.0.1:0") -> None:
        self._start = [sys.executable, "-m", "hedgerow", "ps", "--shard", f"{shard}/{shards}"]
        self._options = options
        self.process = self._spawn(listen)
        self.address = self._address()

    def _spawn(self, listen: str) -> subprocess.Popen[str]:
        command = [*self._start, "--listen", listen, *self._options]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
        )

    def _address(self) -> str:
        out = self.process.stdout
        assert out is not None
        assert select.select([out], [], [], START_S)[0], "a server did not start in time"
        line = out.readline().strip()
        if not line:
            raise RuntimeError(f"a server did not start: {self.stderr()}")
        return line

    def stderr(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def kill(self) -> None:
        """As a crash: kill -9."""
        self.process.kill()
        self.process.wait(START_S)

    def terminate(self) -> int:
        """As a supervisor; the status it leaves with."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(START_S)

    def restart(self, *options: str) -> None:
        """Once it is gone."""
        self._close_pipes()
        self._options = options or self._options
        self.process = self._spawn(self.address.removeprefix("tcp://"))
        assert self._address() == self.address

    def reap(self) -> None:
        if self.process.poll() is None:
            self.kill()
        self._close_pipes()

    def _close_pipes(self) -> None:
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


@contextmanager
def server(*options: str, shard: int = 0, shards: int = 1) -> Iterator[ServerProcess]:
    """One server process."""
    started = ServerProcess(shard, shards, *options)
    try:
        yield started
    finally:
        started.reap()


@contextmanager
def server_thread(**settings: Any) -> Iterator[Server]:
    """A server in a thread of this process: the same sockets, without the start of a process."""
    started = Server(settings.pop("service", None) or Service(), **settings)
    thread = threading.Thread(target=started.run)
    thread.start()
    try:
        yield started
    finally:
        started.stop()
        thread.join()
        started.close()


@contextmanager
def servers(n: int, *options: str) -> Iterator[dict[str, list[str]]]:
    """n real servers and their addresses, as `{"ps": [address, ...]}`."""
    started: list[ServerProcess] = []
    try:
        started.extend(ServerProcess(i, n, *options) for i in range(n))
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
