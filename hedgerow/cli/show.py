"""Benchmarks on a terminal: a progress bar while they run, tables when they are done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table


@contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int], None]]:
    """A bar on stderr, and nothing where stderr is no terminal."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=None)

        def show(text: str, done: int, total: int) -> None:
            bar.update(task, description=escape(text), completed=done, total=total)

        yield show


def show_table_bench(report: dict[str, Any]) -> None:
    """Results against peers, who could not take part and why, then our table alone."""
    console = Console(highlight=False)
    console.print(_setting(report))
    results = report["results"]
    compared = [r for r in results if "peer" in r]
    if compared:
        console.print(_against_peers(compared))
    for note in dict.fromkeys(_notes(compared)):  # each once
        console.print(note)
    for result in results:
        if "peer" not in result:
            facts = ", ".join(f"{key} {value}" for key, value in result.items() if key != "case")
            console.print(f"[bold]{result['case']}[/]: {escape(facts)}")


def _setting(report: dict[str, Any]) -> str:
    work = report["work"]
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    return f"{escape(work['cpu'])}, {work['threads']} threads, {work['rounds']} rounds\n{versions}"


def _against_peers(results: list[dict[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("peer", "output"):
        table.add_column(name, no_wrap=True)
    for name in ("ours ms", "peer ms", "ratio"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("equal")
    for case in dict.fromkeys(map(_case, results)):
        table.add_row(f"[bold]{case}[/]")
        for result in results:
            if _case(result) == case:
                peer, output = escape(result["peer"]), result.get("output", "")
                table.add_row(f"  {peer}", output, *_figures(result))
    return table


def _case(result: dict[str, Any]) -> str:
    """Works are known by their name; growth by its size."""
    return f"growth at {result['rows']:,}" if result["case"] == "growth" else result["case"]


def _figures(result: dict[str, Any]) -> tuple[str, str, str, str]:
    for kind in ("missing", "error"):
        if kind in result:
            return "", "", "", f"[yellow]{kind}[/]"
    colour = "green" if result["ratio"] >= 1 else "yellow"
    return (
        f"{result['ours_ms']:.3f}",
        f"{result['peer_ms']:.3f}",
        f"[{colour}]{result['ratio']:.2f}[/]",
        "yes" if result["equal"] else "[bold red]NO[/]",
    )


def _notes(results: list[dict[str, Any]]) -> Iterator[str]:
    for result in results:
        if "ours_samples_per_s" in result:
            ours, theirs = result["ours_samples_per_s"], result["peer_samples_per_s"]
            yield f"ours {ours:,} samples/s, {escape(result['peer'])} {theirs:,} samples/s"
        for kind in ("missing", "error"):
            if kind in result:
                yield f"[yellow]{escape(result['peer'])}[/]: {kind}: {escape(result[kind])}"
