"""`hedgerow bench`: measures us against every peer on the same work."""

from __future__ import annotations

import json
from typing import Annotated

import typer

app = typer.Typer(
    help="Measure Hedgerow and its peers in the same run, on the same work, with equal results.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@app.callback()
def _bench() -> None:
    """Keeps `table` a verb of its own while it is the only one."""


@app.command()
def table(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of tables.")
    ] = False,
    threads: Annotated[int, typer.Option(help="Threads of every contestant, ours and peers.")] = 2,
    rounds: Annotated[
        int,
        typer.Option(
            help="Rounds of every case. In each, we and the peer take turns; medians count."
        ),
    ] = 5,
    cases: Annotated[
        str, typer.Option(help="Only these cases: names or patterns, as in 'W1 lookup,W2*'.")
    ] = "",
    peers: Annotated[
        str, typer.Option(help="Only these peers: names or patterns, as in 'TBE,nn.*'.")
    ] = "",
    quick: Annotated[
        bool, typer.Option("--quick", help="Small works: a check of the tool, not a measurement.")
    ] = False,
) -> None:
    """Measure the host table: lookups, updates, inserts, memory and growth.

    W1 is 1,000,000 ids of dim 16; W2 is 10,000,000 random 64-bit ids of dim 64 in batches of
    65,536, Zipf 1.05 and uniform. Like is compared with like: fresh output with fresh, reused with
    reused. `ratio` is the time of the peer over ours: above 1 we are faster. Every result is
    checked to be equal; the exit status is 1 if one is not.

    TBE, EBC, managed collision and TFRA need environments of their own: `make bench-peers`. A peer
    that is missing, crashes, hangs or does not fit into memory is reported as such. A full run
    takes about half an hour and up to 12 GB of memory.
    """
    from ..bench.settings import Settings
    from ..bench.table import run
    from .show import progress_bar, show_table_bench

    settings = Settings(
        threads=threads, rounds=rounds, cases=_names(cases), peers=_names(peers), quick=quick
    )
    with progress_bar() as progress:
        report = run(settings, progress)
    if as_json:
        typer.echo(json.dumps(report, indent=1))
    else:
        show_table_bench(report)
    unequal = [f"{r['case']} of {r['peer']}" for r in report["results"] if r.get("equal") is False]
    if unequal:
        typer.echo(f"hedgerow: results differ: {', '.join(unequal)}", err=True)
        raise typer.Exit(1)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
