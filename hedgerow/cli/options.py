"""What several verbs share: options, the group of commands, progress, a line on a checkpoint."""

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
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a checkpoint that is there.")]
Trusted = Annotated[
    bool,
    typer.Option(
        "--trusted",
        help="Load a checkpoint of version 0.1, which can run code: only one of yours.",
    ),
]
Threads = Annotated[int, typer.Option(help="Threads of every contestant, ours and peers.")]
Rounds = Annotated[
    int,
    typer.Option(help="Rounds of every case. In each, we and the peer take turns; medians count."),
]
Quick = Annotated[
    bool, typer.Option("--quick", help="Small works: a check of the tool, not a measurement.")
]


class Verbs(typer.Typer):
    """A `typer.Typer` whose commands refuse a URL wherever they take a path.

    Otherwise `--out s3://bucket/run` would be a folder `s3:` of this machine. The check stands in
    front of every command, so that a new option needs no check of its own.
    """

    def command(self, name: str | None = None, **settings: Any) -> Callable[..., Any]:
        """As `typer.Typer.command`."""
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


def checkpoint_line(target: Path, done: CheckpointManifest) -> str:
    """One line: where, over how many shards by which rule, how many rows."""
    rows = f"{done.rows:,}".replace(",", " ")
    rules = ", ".join(done.dist_types())
    return f"wrote {target}   {done.routing.shards} shards ({rules})   {rows} rows"
