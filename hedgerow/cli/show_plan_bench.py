"""The planning benchmark on a terminal."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table


def show_plan_bench(report: dict[str, Any]) -> None:
    """One line a solver: how long, how many plans found, how far from the best."""
    work, console = report["work"], Console(highlight=False)
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    console.print(
        f"{work['cpu']}, one thread, {work['rounds']} problems a case; {work['devices']} devices "
        f"on {work['machines']} machines, {work['variants']} variants a table\n{versions}"
    )
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("solver", no_wrap=True)
    for name in ("seconds", "times ours", "plans found", "above the best"):
        table.add_column(name, justify="right", no_wrap=True)
    for result in report["results"]:
        table.add_row(*(_peer(result) if "peer" in result else _ours(result)))
    console.print(table)


def _ours(result: dict[str, Any]) -> tuple[str, ...]:
    proven, problems = result["proven"], result["problems"]
    name = f"[bold]{result['case']}[/]: ours"
    return name, _seconds(result["ours_ms"]), "", f"{proven} of {problems} proven", "0 %"


def _peer(result: dict[str, Any]) -> tuple[str, ...]:
    found, problems = result["found"], result["problems"]
    count = f"{found} of {problems}" if found else "[red]none found[/]"
    gap = "" if result["gap"] is None else f"{result['gap']:.2%} (worst {result['worst_gap']:.2%})"
    seconds, ratio = _seconds(result["peer_ms"]), f"{result['ratio']:.2f}"
    return f"  {result['peer']}", seconds, ratio, count, gap


def _seconds(ms: float) -> str:
    return f"{ms / 1e3:.2f}"
