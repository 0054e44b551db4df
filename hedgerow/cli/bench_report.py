"""What all benchmarks of the program share: how a report is shown, and names in one option."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import typer


def finish(
    report: dict[str, Any],
    as_json: bool,
    show: Callable[[dict[str, Any]], None] | None = None,
) -> None:
    """Shows a report; results that are not equal end the program with status 1."""
    from .show import show_table_bench

    if as_json:
        typer.echo(json.dumps(report, indent=1))
    else:
        (show or show_table_bench)(report)
    unequal = [
        f"{r['case']} of {r['peer']}" if "peer" in r else r["case"]
        for r in report["results"]
        if r.get("equal") is False
    ]
    if unequal:
        typer.echo(f"hedgerow: results differ: {', '.join(unequal)}", err=True)
        raise typer.Exit(1)


def names(text: str) -> tuple[str, ...]:
    """What commas separate; those within a number do not.

    >>> names("lookup of 1,000 ids, push*")
    ('lookup of 1,000 ids', 'push*')
    """
    return tuple(name.strip() for name in re.split(r",(?!\d{3})", text) if name.strip())
