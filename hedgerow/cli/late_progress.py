"""Progress of work that is mostly quick: nothing in its first second, then a line that changes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

_QUIET_S, _PLAIN_S = 1.0, 10.0


@contextmanager
def late_progress() -> Iterator[Callable[[str, int, int], None]]:
    """Takes (what, done, in all). On a terminal one line changes; elsewhere lines come rarely."""
    terminal, began = sys.stderr.isatty(), time.monotonic()
    shown = 0.0 if terminal else began

    def show(text: str, done: int, total: int) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - began < _QUIET_S or now - shown < (0.1 if terminal else _PLAIN_S):
            return
        shown = now
        line = f"{text} {done}/{total}" if total else f"{text} {done}"
        typer.echo(f"\r\033[K{line}" if terminal else line, err=True, nl=not terminal)

    yield show
    if terminal and shown:
        typer.echo("\r\033[K", err=True, nl=False)
