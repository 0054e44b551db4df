"""`hedgerow plan`: chooses the placement of every table, for this or other machines."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.errors import InputError
from ..core.units import parse_bytes
from .options import AsJson, late_progress

if TYPE_CHECKING:
    from ..planner.plan import Plan
    from ..planner.problem.table_spec import TableSpec
    from ..planner.problem.topology import Reserve, Topology


LocalRanks = Annotated[
    int | None, typer.Option(help="Ranks per machine; default: all on one machine.", min=1)
]
Hbm = Annotated[
    str | None,
    typer.Option(help="HBM per device, as in 80GiB; 0 without GPUs. Default: this machine's."),
]
Host = Annotated[
    str | None, typer.Option(help="Host memory per machine, as in 1TiB. Default: this machine's.")
]

Batch = Annotated[
    int | None, typer.Option(help="Samples per rank and step; default: the job's, or 4096.", min=1)
]
KeepHbm = Annotated[
    str, typer.Option(help="HBM per device to keep free for the dense part, in addition to 15 %.")
]
KeepHost = Annotated[str, typer.Option(help="Host memory per machine to keep free, beside 10 %.")]
WhatIf = Annotated[str | None, typer.Option(help="Other sizes to try: hbm=24GiB,32GiB or host=...")]
Pin = Annotated[
    list[str] | None,
    typer.Option(help="Fix a table's mode or option: item=CACHING, item=CACHING@0.1."),
]
Rows = Annotated[list[str] | None, typer.Option(help="Row counts of tables: item=1000000.")]
Times = Annotated[Path | None, typer.Option(help="A calibration from `hedgerow calibrate`.")]
LayoutName = Annotated[
    str, typer.Option(help="Row layout to assume: hedgerow, strict or baseline.")
]
ChooseRouting = Annotated[
    bool,
    typer.Option(
        "--choose-routing", help="Use the recommended dist_type of each table, for a new model."
    ),
]
Thrashing = Annotated[
    bool, typer.Option("--allow-thrashing", help="Allow caches smaller than one step.")
]
TimeLimit = Annotated[float, typer.Option(help="Time limit of the solver in seconds.", min=0.1)]
Out = Annotated[Path | None, typer.Option(help="Write the plan to this file.")]
Html = Annotated[Path | None, typer.Option(help="Write an HTML report to this file.")]
Png = Annotated[Path | None, typer.Option(help="Write a plot to this file.")]


def machines(ranks: int, local: int | None, hbm: str | None, host: str | None) -> Topology:
    """Returns the machines that options describe; missing values are those of this machine."""
    from ..planner.problem.topology import Topology

    card = None if hbm is None else size_of("--hbm", hbm)
    pool = None if host is None else size_of("--host", host)
    if card is None or pool is None:
        here = Topology.detect(ranks, local, device="cpu" if card is not None else None)
        card = min(here.hbm_by_device) if card is None else card
        pool = here.machines[0].ddr if pool is None else pool
    return Topology(
        world=ranks,
        local_world=local,
        hbm_per_device=card,
        ddr_per_machine=pool,
        device="cuda" if card else "cpu",
    )


def reserve(hbm: str, host: str) -> Reserve:
    """Returns the memory to keep free in addition to the default shares."""
    from ..planner.problem.topology import Reserve

    return Reserve(hbm_bytes=size_of("--keep-hbm", hbm), ddr_bytes=size_of("--keep-host", host))


def size_of(option: str, text: str) -> int:
    """Returns the bytes of a size such as "80GiB"; 0 needs no unit."""
    if text.strip() == "0":
        return 0
    try:
        return parse_bytes(text)
    except InputError as error:
        raise InputError(f"{option}: {error}") from error


def pairs(option: str, given: list[str]) -> dict[str, str]:
    """Returns the pairs of repeated or comma-separated NAME=VALUE.

    >>> pairs("--pin", ["item=CACHING,user=HOST_ONLY", "city=HBM_ONLY"])
    {'item': 'CACHING', 'user': 'HOST_ONLY', 'city': 'HBM_ONLY'}
    """
    found: dict[str, str] = {}
    for text in (part.strip() for one in given for part in one.split(",")):
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise InputError(f"{option} has {text!r}; write NAME=VALUE, as in {option} item=...")
        if name in found:
            raise InputError(f"{option} names {name!r} twice.")
        found[name] = value
    return found


def row_counts(given: list[str]) -> dict[str, int]:
    """Returns row counts by table.

    >>> row_counts(["item=1_000"])
    {'item': 1000}
    """
    found = {}
    for name, text in pairs("--rows", given).items():
        if not text.replace("_", "").isdecimal() or not int(text):
            raise InputError(f"--rows {name}={text}; give a whole number from 1 on.")
        found[name] = int(text)
    return found


def what_if_sizes(text: str | None) -> Mapping[str, list[int]]:
    """Returns the sizes to try, by kind of memory.

    >>> what_if_sizes("hbm=1KiB,2KiB")
    {'hbm': [1024, 2048]}
    """
    if text is None:
        return {}
    name, equals, sizes = text.partition("=")
    if name not in ("hbm", "host") or not equals:
        raise InputError(
            f"--what-if is {text!r}; write hbm= or host= and sizes, as in hbm=24GiB,32GiB."
        )
    return {name: [size_of("--what-if", part) for part in sizes.split(",")]}


def with_advised_routing(specs: Sequence[TableSpec], topology: Topology) -> list[TableSpec]:
    """Returns tables with the `dist_type` that their key samples advise, if they have samples."""
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


_BATCH = 4096


def plan(
    tables: Annotated[
        Path,
        typer.Argument(metavar="TABLES", help="Tables, or a training job; a .toml or .json file."),
    ],
    ranks: Annotated[int, typer.Option(help="Ranks of the job.", min=1)],
    local_ranks: LocalRanks = None,
    hbm: Hbm = None,
    host: Host = None,
    batch: Batch = None,
    keep_hbm: KeepHbm = "0",
    keep_host: KeepHost = "0",
    what_if: WhatIf = None,
    pin: Pin = None,
    rows: Rows = None,
    calibration: Times = None,
    layout: LayoutName = "hedgerow",
    choose_routing: ChooseRouting = False,
    allow_thrashing: Thrashing = False,
    time_limit: TimeLimit = 10.0,
    out: Out = None,
    html: Html = None,
    png: Png = None,
    as_json: AsJson = False,
) -> None:
    """Choose the placement of every table: in HBM, on the host, or in both.

    The choice is exact: no plan that fits into the memory takes less time. HBM is per device, host
    memory is per machine. The machines may be others than this one; values that are not given are
    those of this machine. The exit status is 1 if the tables do not fit; the message says what is
    missing.

    If TABLES is a training job, its data is sampled for the sizes and the keys of its tables.

    Try: `hedgerow plan examples/movielens.toml --ranks 2 --hbm 0 --out plan.json`
    """
    topology = machines(ranks, local_ranks, hbm, host)
    kept = reserve(keep_hbm, keep_host)
    sizes, pinned = what_if_sizes(what_if), pairs("--pin", pin or [])
    with late_progress() as progress:
        specs, samples = read_tables(tables, row_counts(rows or []), ranks, progress)
        if choose_routing:
            specs = with_advised_routing(specs, topology)
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
    from ..planner.problem.options import PlanError
    from ..planner.times.calibration import Calibration

    known = None if times is None else Calibration.load(times)
    try:
        return make_plan(specs, topology, known, kept, **settings)
    except PlanError as error:
        typer.echo(f"hedgerow: {error}", err=True)  # keeps the line breaks of the report
        raise typer.Exit(1) from error


def read_tables(
    path: Path, rows: Mapping[str, int], ranks: int, progress: Callable[[str, int, int], None]
) -> tuple[list[TableSpec], int | None]:
    """Returns the tables of a file, and for a job the samples per rank and step."""
    from ..train.config_file import read_text
    from ..train.job import read_job
    from .table_files import specs_of_job, tables_of, with_rows

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
    from ..planner.explain import hbm_curve, host_curve
    from ..planner.report import default_curve, host_lines, report_text

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
