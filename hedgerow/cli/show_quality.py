"""The quality of tables on a terminal: one row a variant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table


def show_quality(report: dict[str, Any], png: Path | None) -> None:
    """AUC of every variant, beside what the first reaches."""
    console = Console(highlight=False)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("rows kept as", no_wrap=True)
    for name in ("rows", "AUC", "spread", "against ours", "log loss"):
        table.add_column(name, justify="right", no_wrap=True)
    results = report["results"]
    for case in dict.fromkeys(r["case"] for r in results):
        of_case = [r for r in results if r["case"] == case]
        ours = of_case[0]
        table.add_row(f"[bold]{escape(case)}[/]")
        for r in of_case:
            figures = (f"{r['rows']:,}", f"{r['auc']:.4f}", f"{r['spread']:.4f}")
            table.add_row(
                f"  {escape(r['variant'])}",
                *figures,
                "" if r is ours else f"{r['auc'] - ours['auc']:+.4f}",
                f"{r['loss']:.4f}",
            )
        if "best_auc" in ours:
            table.add_row("  best reachable", "", f"{ours['best_auc']:.4f}")
    console.print(table)
    console.print(f"{report['work']['seeds']} seeds; spread is the standard deviation over them.")
    if png is not None:
        console.print(f"wrote {escape(str(png))}")
