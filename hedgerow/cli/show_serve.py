"""Shows what `hedgerow bench serve` measured."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table


def show_serve(report: dict[str, Any]) -> None:
    """Requests per second and times of both sides, for each number of clients."""
    work = report["work"]
    console = Console(highlight=False)
    console.print(f"{escape(work['cpu'])}, {work['rounds']} rounds of {work['seconds']} s")
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("case", no_wrap=True)
    for name in ("ours /s", "echo /s", "ratio", "ours p99 ms", "echo p99 ms"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("equal")
    for row in report["results"]:
        table.add_row(
            escape(row["case"]),
            f"{row['ours_rps']:,.0f}",
            f"{row['peer_rps']:,.0f}",
            f"{row['ratio']:.2f}",
            f"{row['ours_p99_ms']:.2f}",
            f"{row['peer_p99_ms']:.2f}",
            "yes" if row["equal"] else "[bold red]NO[/]",
        )
    console.print(table)
