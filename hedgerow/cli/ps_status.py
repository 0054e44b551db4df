"""`hedgerow ps-status`: how parameter servers are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .options import AsJson

_SHOWN = ("rows", "clients", "waiting")
_COUNTED = ("writes_applied", "writes_repeated", "busy", "late", "frames_refused", "faults")


def ps_status(
    addresses: Annotated[list[str], typer.Argument(help="HOST:PORT of each server.")],
    keys: Annotated[
        Path | None, typer.Option(help="Folder of the client's keys, if the servers have keys.")
    ] = None,
    deadline_s: Annotated[
        float, typer.Option("--deadline", min=0.01, help="Seconds to wait for an answer.")
    ] = 5.0,
    as_json: AsJson = False,
) -> None:
    """Show health and counters of servers; the exit status is 1 if one does not answer."""
    from ..ps.status import status_of

    found = status_of(addresses, keys=keys, deadline_s=deadline_s)
    if as_json:
        typer.echo(json.dumps({"servers": found}, indent=1))
    else:
        _show(found)
    raise typer.Exit(int(any("error" in one for one in found)))


def _show(found: list[dict[str, Any]]) -> None:
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("server", "state", *_SHOWN, *_COUNTED):
        table.add_column(name.replace("_", " "), justify="left" if name == "server" else "right")
    for one in found:
        if "error" in one:
            table.add_row(escape(one["address"]), "away")
            continue
        health, counters = one["health"], one["counters"]
        numbers = [health[name] for name in _SHOWN] + [counters.get(name, 0) for name in _COUNTED]
        table.add_row(
            escape(f"{health['name']} {one['address']}"),
            health["state"],
            *(f"{number:,}" for number in numbers),
        )
    console = Console(highlight=False)
    console.print(table)
    for one in found:
        if "error" in one:
            console.print(escape(one["error"]))
