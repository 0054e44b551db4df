"""`hedgerow ps-status`: shows the health of parameter servers."""

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

_TROUBLE = ("busy", "late", "frames_refused", "answers_dropped", "faults", "log_failures")


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
    from ..ps.remote_shard import status_of

    found = status_of(addresses, keys=keys, deadline_s=deadline_s)
    if as_json:
        typer.echo(json.dumps({"servers": found}, indent=1))
    else:
        _show(found)
    raise typer.Exit(int(any("error" in one for one in found)))


def _show(found: list[dict[str, Any]]) -> None:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("server", no_wrap=True)
    for name in ("state", "rows", "clients", "waiting", "writes", "repeated", "trouble"):
        table.add_column(name, justify="right")
    notes = []
    for one in found:
        if "error" in one:
            table.add_row(escape(one["address"]), "away")
            notes.append(one["error"])
            continue
        health, counters = one["health"], one["counters"]
        trouble = {name: counters[name] for name in _TROUBLE if counters.get(name)}
        numbers = [health[name] for name in ("rows", "clients", "waiting")]
        numbers += [counters.get(f"writes_{name}", 0) for name in ("applied", "repeated")]
        label = f"{health['name']} {one['address']}"
        shown = (f"{number:,}" for number in (*numbers, sum(trouble.values())))
        table.add_row(escape(label), health["state"], *shown)
        if trouble:
            notes.append(f"{label}: {', '.join(f'{n:,} {name}' for name, n in trouble.items())}")
    console = Console(highlight=False)
    console.print(table)
    for note in notes:
        console.print(escape(note))
