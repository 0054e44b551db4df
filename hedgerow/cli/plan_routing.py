"""Applies what samples of keys advise on routing, where the user asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from ..planner.problem.table_spec import TableSpec
    from ..planner.problem.topology import Topology


def routed(specs: Sequence[TableSpec], topology: Topology) -> list[TableSpec]:
    """Tables with the `dist_type` that their samples advise; without samples as they are."""
    from ..planner.times.routing_advice import routing_advice

    found = []
    for spec in specs:
        advice = routing_advice(spec, topology.world) if topology.world > 1 else None
        advised = spec.dist_type if advice is None else advice.recommended
        if advised != spec.dist_type:
            typer.echo(
                f"{spec.name}: {advised} instead of {spec.dist_type}, as its keys advise; set "
                f"dist_type in the model, too. A checkpoint keeps the rule it was saved with.",
                err=True,
            )
        found.append(replace(spec, dist_type=advised))
    return found
