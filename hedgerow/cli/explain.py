"""`hedgerow explain`: prints a plan, or why a table of it has its placement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .options import AsJson


def explain(
    plan: Annotated[Path, typer.Argument(metavar="PLAN.json", help="From `hedgerow plan --out`.")],
    table: Annotated[
        str | None, typer.Argument(help="A table of the plan; default: the whole plan.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a plan, or all options of one table and the reasons against them."""
    from ..planner.explain import reasons
    from ..planner.plan import Plan

    found = Plan.load(plan)
    if table is None:
        typer.echo(json.dumps(found.to_dict(), indent=1) if as_json else found.table())
        return
    if not as_json:
        typer.echo(found.explain(table))
        return
    lines = [
        {
            "option": reason.choice.label,
            "ms": reason.choice.ms,
            "hit_rate": reason.choice.hit_rate,
            "hbm_bytes": reason.choice.hbm,
            "ddr_bytes": reason.choice.ddr,
            "cost_ms": reason.cost_ms,
            "why": reason.why,
        }
        for reason in reasons(found, table)
    ]
    typer.echo(json.dumps({"table": table, "options": lines}, indent=1))
