"""`hedgerow check`: checks whether machines can run a plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import AsJson
from .plan import Hbm, Host, LocalRanks, machines

if TYPE_CHECKING:
    from ..planner.plan import Plan


def check(
    plan: Annotated[Path, typer.Argument(metavar="PLAN.json", help="From `hedgerow plan --out`.")],
    ranks: Annotated[
        int | None, typer.Option(help="Ranks of the job; default: those of the plan.", min=1)
    ] = None,
    local_ranks: LocalRanks = None,
    hbm: Hbm = None,
    host: Host = None,
    tables: Annotated[
        Path | None,
        typer.Option(help="Check that the plan is for the tables of this file or job."),
    ] = None,
    accept_drift: Annotated[
        bool, typer.Option("--accept-drift", help="Accept other row counts within the reserve.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check whether this machine, or the described ones, can run a plan; exit status 1 if not.

    A plan needs its number of ranks, and enough memory on each device and machine.
    """
    from ..planner.compare import shortages
    from ..planner.plan import Plan

    found = Plan.load(plan)
    local = local_ranks or (found.topology.ranks_per_machine if ranks is None else None)
    here = machines(ranks or found.topology.world, local, hbm, host)
    wrong = shortages(found, here)
    if tables is not None:
        _check_tables(found, tables, accept_drift=accept_drift)
    if as_json:
        typer.echo(json.dumps({"carries": not wrong, "wrong": wrong}, indent=1))
    else:
        for line in wrong:
            typer.echo(line)
        typer.echo(f"{here.describe()}: {'cannot carry' if wrong else 'carries'} {plan}")
    if wrong:
        raise typer.Exit(1)


def _check_tables(plan: Plan, path: Path, *, accept_drift: bool) -> None:
    from .options import late_progress
    from .plan import read_tables

    with late_progress() as progress:
        specs, _ = read_tables(path, {}, plan.topology.world, progress)
    plan.check(specs, accept_drift=accept_drift)
