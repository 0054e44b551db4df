"""Reports of benchmarks on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table


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
