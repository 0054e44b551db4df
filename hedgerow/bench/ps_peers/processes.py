"""Starts the server processes of one kind and ends them again."""

from __future__ import annotations

import select
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ...core.errors import LaunchError
from ..peers.workfile import Work
from .asked import SERVERS

SERVER = "server"  # the first argument of a module that is to be a server
_START_S = 120.0


def servers_of(module: str, work: Work) -> list[list[str]]:
    """The servers of a peer whose module is client and server."""
    folder, count = str(work.folder), str(SERVERS)
    return [[module, SERVER, folder, str(i), count] for i in range(SERVERS)]


@contextmanager
def started(commands: Sequence[Sequence[str]]) -> Iterator[list[str]]:
    """Processes of `python -m ...`, all at once, and the line that each says when it is ready."""
    processes: list[subprocess.Popen[str]] = []
    try:
        for command in commands:
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True
                )
            )
        yield [_first_line(process) for process in processes]
    finally:
        for process in processes:
            process.kill()  # it has nothing to save
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], _START_S)
    line = process.stdout.readline().strip() if ready else ""
    if not line:
        raise LaunchError(f"a server said nothing within {_START_S:g} s: {process.args}.")
    return line
