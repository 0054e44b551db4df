"""`hedgerow launch --servers` as a user starts it, with what it says read beside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SCRIPT = Path(__file__).with_name("server_job.py")
_LIMIT_S = 200.0


class Launched:
    """The program, its lines, and waiting for one of them."""

    def __init__(self, *args: object) -> None:
        root = str(Path(__file__).parents[2])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hedgerow", "launch", *map(str, args)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=root,
            env={k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"},
        )
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def line(self, *words: str, times: int = 1) -> str:
        """The `times`-th line with all `words`; waits for it."""
        limit = time.monotonic() + _LIMIT_S
        with self._changed:
            while True:
                found = [line for line in self.lines if all(word in line for word in words)]
                if len(found) >= times:
                    return found[times - 1]
                assert self._reader.is_alive(), f"it ended without {words}: {self.lines}"
                left = limit - time.monotonic()
                assert left > 0, f"no line with {words} in time: {self.lines}"
                self._changed.wait(left)

    def kill_server(self, name: str) -> None:
        """As a crash: kill -9."""
        line = self.line(f"server {name} listens at")
        os.kill(int(line.split("process ")[1].split(")")[0]), signal.SIGKILL)

    def status(self) -> int:
        """Once it ended."""
        status = self.process.wait(_LIMIT_S)
        self._reader.join(_LIMIT_S)
        return status

    def reap(self) -> None:
        """Ends it in order; at once if it does not."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._reader.join(_LIMIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def launched(*args: object) -> Iterator[Launched]:
    """One run of the program."""
    started = Launched(*args)
    try:
        yield started
    finally:
        started.reap()
