"""A process that a test tells what to do; if it dies or hangs, the test says why."""

from __future__ import annotations

import faulthandler
import os
import signal
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ..ps.servers import FORKS, START_S

ANSWER_S = 4 * START_S
_DUMP_S, _WAIT_S = 5.0, 0.5


class Child:
    """Does what it is told over a pipe; `kill` is kill -9, and `restart` a new start.

    What it writes to stderr is kept, with the stacks of its threads if it crashes or is late.
    """

    def __init__(self, work: Callable[..., None], *arguments: Any) -> None:
        self._work, self._arguments = work, arguments
        self._stderr = tempfile.NamedTemporaryFile(prefix="child-", suffix=".stderr")  # noqa: SIM115
        self.told = self._start()

    def _start(self) -> Any:
        self._pipe, theirs = FORKS.Pipe()
        self._process = FORKS.Process(
            target=_work, args=(self._stderr.name, self._work, theirs, *self._arguments)
        )
        self._process.daemon = True
        self._process.start()
        theirs.close()
        return self._answer("start", START_S)

    def ask(self, what: str, *arguments: Any) -> Any:
        """Tells it to do something; what it answers."""
        self._pipe.send((what, *arguments))
        answer = self._answer(what, ANSWER_S)
        if isinstance(answer, Exception):
            raise AssertionError(f"{what}: {answer!r}\n{self._said()}")
        return answer

    def _answer(self, what: str, timeout_s: float) -> Any:
        # In short waits: where all processes are stopped for a while, that is no lateness.
        if not any(self._pipe.poll(_WAIT_S) for _ in range(int(timeout_s / _WAIT_S))):
            assert self._process.pid is not None
            os.kill(self._process.pid, signal.SIGABRT)  # its stacks go to stderr
            self._process.join(_DUMP_S)
            raise AssertionError(f"no answer to {what} in {timeout_s} s\n{self._said()}")
        try:
            return self._pipe.recv()
        except EOFError:
            self._process.join(_DUMP_S)
            code = self._process.exitcode
            raise AssertionError(f"{what}: it ended with {code}\n{self._said()}") from None

    def _said(self) -> str:
        return Path(self._stderr.name).read_text(errors="replace")[-20_000:]

    def kill(self) -> None:
        self._process.kill()
        self._process.join(START_S)
        self._pipe.close()

    def restart(self, *arguments: Any) -> None:
        """Once it is gone; with other arguments if some are given."""
        self._arguments = arguments or self._arguments
        self.told = self._start()

    def reap(self) -> None:
        if self._process.is_alive():
            self.kill()
        self._process.close()
        self._stderr.close()


def _work(stderr: str, work: Callable[..., None], pipe: Connection, *arguments: Any) -> None:
    with Path(stderr).open("ab") as log:
        os.dup2(log.fileno(), 2)
    faulthandler.enable(2)
    work(pipe, *arguments)
