"""A group of commands that take paths of this machine's file system, and of no other place yet."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from ..core.local_path import local_path


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
