"""A process of a job: what it says, line by line, and how it ends."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

_SIGNALLED = 128  # and the signal's number, as shells do
_GRACE_S = 10.0  # between SIGTERM and SIGKILL
_MOST_LINES = 1000  # told at once


@dataclass(frozen=True, slots=True)
class Told:
    """Lines since the last time, each with whether it was an error's; `status` once it ended."""

    lines: tuple[tuple[bool, str], ...] = ()
    status: int | None = None


class ScriptProcess:
    """A command that runs; its lines wait until `next` takes them, its pipes until there is room.

    It has a session of its own, so that Ctrl-C of a terminal reaches the launcher alone, and so
    that whatever it started ends with it. Safe from two threads: one takes, one may stop it.
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
        """Its number."""
        return self._process.pid

    def _read(self, pipe: IO[bytes], is_error: bool) -> None:
        with pipe:
            for line in pipe:
                self._lines.put((is_error, line.decode(errors="replace").rstrip("\r\n")))
        self._lines.put(None)

    def next(self) -> Told:
        """What it said since the last time; waits until it says something or has ended."""
        found: list[tuple[bool, str]] = []
        while self._open_pipes and len(found) < _MOST_LINES:
            try:
                line = self._lines.get(block=not found)
            except queue.Empty:
                return Told(tuple(found))
            if line is None:
                self._open_pipes -= 1
            else:
                found.append(line)
        if self._open_pipes:
            return Told(tuple(found))
        status = self._process.wait()
        self._signal_all(signal.SIGKILL)  # what it left behind
        return Told(tuple(found), status if status >= 0 else _SIGNALLED - status)

    def stop(self, grace_s: float = _GRACE_S) -> None:
        """Asks it to end, and makes it end if it does not."""
        self._signal_all(signal.SIGTERM)
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._signal_all(signal.SIGKILL)

    def _signal_all(self, number: int) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return  # all of them are gone
