"""Shared parts of commands: options, the group of commands, progress, a line about a checkpoint."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.files import local_path

if TYPE_CHECKING:
    from ..tables.checkpoint.manifest import CheckpointManifest


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing checkpoint.")]
Trusted = Annotated[
    bool,
    typer.Option(
        "--trusted",
        help="Load a checkpoint of release 0.1, which can run code: only if you trust its maker.",
    ),
]
Threads = Annotated[int, typer.Option(help="Threads of each contestant, Hedgerow and peers.")]
Rounds = Annotated[
    int,
    typer.Option(help="Rounds per case. Hedgerow and its peer alternate; the medians are shown."),
]
Quick = Annotated[
    bool, typer.Option("--quick", help="Small works: tests the tool, measures nothing.")
]


class Verbs(typer.Typer):
    """A `typer.Typer` whose commands refuse a URL as a path.

    Otherwise `--out s3://bucket/run` would be a local folder `s3:`. The check is in front of every
    command, so that a new option needs no check of its own.
    """

    def command(self, name: str | None = None, **settings: Any) -> Callable[..., Any]:
        """Registers a command; see `typer.Typer.command`."""
        register = super().command(name, **settings)

        def decorate(verb: Callable[..., Any]) -> Callable[..., Any]:
            register(_with_local_paths(verb))
            return verb

        return decorate


def _with_local_paths(verb: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(verb)
    def checked(**given: Any) -> Any:
        for value in given.values():
            for one in value if isinstance(value, list | tuple) else [value]:
                if isinstance(one, Path):
                    local_path(one)
        return verb(**given)

    return checked


_QUIET_S, _PLAIN_S = 1.0, 10.0


@contextmanager
def late_progress() -> Iterator[Callable[[str, int, int], None]]:
    """Yields a function of (text, done, total): a changing line on a terminal, else rare lines."""
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


def checkpoint_line(target: Path, done: CheckpointManifest) -> str:
    """Returns a line with the folder, shards, routing rules and rows of a checkpoint."""
    rows = f"{done.rows:,}".replace(",", " ")
    rules = ", ".join(done.dist_types())
    return f"wrote {target}   {done.routing.shards} shards ({rules})   {rows} rows"
