"""`hedgerow plan`: where every table should live, on machines that need not be here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import plan_options as given
from .late_progress import late_progress
from .options import AsJson
from .plan_routing import routed

if TYPE_CHECKING:
    from ..planner.plan import Plan
    from ..planner.problem.table_spec import TableSpec
    from ..planner.problem.topology import Reserve, Topology

_BATCH = 4096


def plan(
    tables: Annotated[
        Path,
        typer.Argument(metavar="TABLES", help="Tables, or a training job; a .toml or .json file."),
    ],
    ranks: Annotated[int, typer.Option(help="Ranks of the job.", min=1)],
    local_ranks: given.LocalRanks = None,
    hbm: given.Hbm = None,
    host: given.Host = None,
    batch: given.Batch = None,
    keep_hbm: given.KeepHbm = "0",
    keep_host: given.KeepHost = "0",
    what_if: given.WhatIf = None,
    pin: given.Pin = None,
    rows: given.Rows = None,
    calibration: given.Times = None,
    layout: given.LayoutName = "hedgerow",
    choose_routing: given.ChooseRouting = False,
    allow_thrashing: given.Thrashing = False,
    time_limit: given.TimeLimit = 10.0,
    out: given.Out = None,
    html: given.Html = None,
    png: given.Png = None,
    as_json: AsJson = False,
) -> None:
    """Choose for every table where it lives: in HBM, on the host, or in both.

    The choice is exact: no plan within the memory takes less time. HBM is of each device, host
    memory of each machine. Nothing of them needs to be here; of what is not given, this machine's
    is taken. The exit status is 1 if the tables do not fit; the message says what is missing.

    A training job is sampled for the sizes and the keys of its tables.

    Try: `hedgerow plan examples/movielens.toml --ranks 2 --hbm 0 --out plan.json`
    """
    topology = given.machines(ranks, local_ranks, hbm, host)
    kept = given.reserve(keep_hbm, keep_host)
    sizes, pinned = given.what_if_sizes(what_if), given.pairs("--pin", pin or [])
    with late_progress() as progress:
        specs, samples = read_tables(tables, given.row_counts(rows or []), ranks, progress)
        if choose_routing:
            specs = routed(specs, topology)
        settings: dict[str, Any] = {
            "batch": batch or samples or _BATCH,
            "layout": layout,
            "thrashing": allow_thrashing,
            "time_limit": time_limit,
            "pin": pinned,
        }
        found = _planned(specs, topology, calibration, kept, {**settings, "progress": progress})
    _show(found, sizes, out=out, html=html, png=png, as_json=as_json)


def _planned(
    specs: Sequence[TableSpec],
    topology: Topology,
    times: Path | None,
    kept: Reserve,
    settings: Mapping[str, Any],
) -> Plan:
    from ..planner.make_plan import plan as make_plan
    from ..planner.problem.solution import PlanError
    from ..planner.times.calibration import Calibration

    known = None if times is None else Calibration.load(times)
    try:
        return make_plan(specs, topology, known, kept, **settings)
    except PlanError as error:
        typer.echo(f"hedgerow: {error}", err=True)  # lines as they are: it is a small report
        raise typer.Exit(1) from error


def read_tables(
    path: Path, rows: Mapping[str, int], ranks: int, progress: Callable[[str, int, int], None]
) -> tuple[list[TableSpec], int | None]:
    """The tables of a file, and samples of a rank and step where it is a job."""
    from ..train.config_text import read_text
    from ..train.job import read_job
    from .plan_job import specs_of_job
    from .plan_tables import tables_of, with_rows

    values, origin = read_text(path)
    if "tables" in values or "data" not in values:
        return with_rows(tables_of(values, origin, path.parent), rows), None
    job = read_job(path)
    return specs_of_job(job, rows, progress), -(-job.data.batch_size // ranks)


def _show(
    plan: Plan,
    sizes: Mapping[str, Sequence[int]],
    *,
    out: Path | None,
    html: Path | None,
    png: Path | None,
    as_json: bool,
) -> None:
    from ..planner.report import default_curve, host_lines, report_text
    from ..planner.what_if import hbm_curve, host_curve

    curve = hbm_curve(plan, sizes["hbm"]) if "hbm" in sizes else default_curve(plan)
    hosts = host_curve(plan, sizes["host"]) if "host" in sizes else []
    if out is not None:
        plan.save(out)
    if html is not None:
        plan.html(html)
    if png is not None:
        plan.png(png)
    if as_json:
        typer.echo(json.dumps(plan.to_dict(), indent=1))
        return
    typer.echo(report_text(plan, curve=curve))
    if hosts:
        typer.echo("\n" + "\n".join(host_lines(plan, hosts)))
    for path in (out, html, png):
        if path is not None:
            typer.echo(f"wrote {path}", err=True)
