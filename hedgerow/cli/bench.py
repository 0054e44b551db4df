"""`hedgerow bench`: runs the benchmarks of a checkout; the installed package has none."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from ..core.errors import ConfigError

CHECKOUT = Path(__file__).parents[2]
"""The folder that contains the package; in a checkout it also contains the benchmarks."""


class _Benchmarks(TyperGroup):
    """The commands in the folder `benchmarks` next to the package, imported on first use."""

    @property
    def commands(self) -> Any:
        """The commands by name."""
        return _loaded(CHECKOUT)

    @commands.setter
    def commands(self, given: Any) -> None:
        """Does nothing: the group has no commands of its own."""


@cache
def _loaded(checkout: Path) -> Mapping[str, Any]:
    """Returns the commands of a checkout."""
    if not all((checkout / name).exists() for name in ("benchmarks/commands.py", "pyproject.toml")):
        raise ConfigError(
            "benchmarks are not part of the installed package; run `hedgerow bench` from a "
            "checkout of the repository."
        )
    if str(checkout) not in sys.path:
        sys.path.insert(0, str(checkout))
    from benchmarks.commands import app as benchmarks

    group: Any = typer.main.get_command(benchmarks)
    return group.commands


app = typer.Typer(
    cls=_Benchmarks,
    help="Measure Hedgerow and its peers in the same run, on the same work, with equal results. "
    "Needs a checkout of the repository.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
