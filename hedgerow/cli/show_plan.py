"""Prints the sharding plan of a job, on rank 0 only."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from ..train.job import Job


def show_plan(job: Job, *, as_json: bool) -> None:
    """Prints the plan for the launcher's ranks, without waiting for its other processes."""
    from ..launch.rank_info import rank_info
    from ..train.job_plan import job_plan

    info = rank_info()
    if info.rank == 0:
        plan = job_plan(job, info.world_size)
        typer.echo(json.dumps(plan.to_dict(), indent=1) if as_json else plan.text())
