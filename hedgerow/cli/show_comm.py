"""The communication benchmark on a terminal."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table


def show_comm(report: dict[str, Any]) -> None:
    """One line a case and length."""
    work = report["work"]
    console = Console(highlight=False)
    console.print(f"{work['cpu']}, {work['processes']} processes, {work['iterations']} iterations")
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("case")
    for name in ("length", "sent", "ms", "goodput Gb/s", "bus Gb/s"):
        table.add_column(name, justify="right", no_wrap=True)
    for result in report["results"]:
        table.add_row(
            result["case"],
            f"{result['length']:,}",
            f"{result['sent']:,}",
            f"{result['latency_ms']:.3f}",
            f"{result['goodput_gbps']:.3f}",
            f"{result['bus_gbps']:.3f}",
        )
    console.print(table)
