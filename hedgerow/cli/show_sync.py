"""Shows what `hedgerow bench sync` measured."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table


def show_sync(report: dict[str, Any]) -> None:
    """Rows per second of both sides, for each width of rows and each floor."""
    work = report["work"]
    console = Console(highlight=False)
    console.print(f"{escape(work['cpu'])}, {work['rounds']} rounds of {work['rows']:,} rows")
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("case", "floor"):
        table.add_column(name, no_wrap=True)
    for name in ("ours rows/s", "floor rows/s", "ratio"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("equal")
    for row in report["results"]:
        table.add_row(
            escape(row["case"]),
            escape(row["peer"]),
            f"{row['ours_rows_per_s']:,}",
            f"{row['peer_rows_per_s']:,}",
            f"{row['ratio']:.2f}",
            "yes" if row["equal"] else "[bold red]NO[/]",
        )
    console.print(table)
