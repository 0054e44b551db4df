"""Explains why each table is placed as it is, and plans for other conditions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ..core.errors import ConfigError, StateError
from ..core.units import format_bytes, format_count
from .plan import Placed, Plan, PlanInputs, WeighedOption
from .problem.options import PlanError
from .problem.topology import GIB, Topology


@dataclass(frozen=True, slots=True)
class NextBest:
    """The cheapest other option at present prices, as differences from the chosen one."""

    label: str
    ms: float
    hbm: int
    ddr: int


@dataclass(frozen=True, slots=True)
class ReportRow:
    """One table of a report. `rows` and `dim` are None if the plan has no inputs."""

    table: Placed
    rows: int | None
    dim: int | None
    share: float  # of the step time
    next_best: NextBest | None


def report_rows(plan: Plan) -> list[ReportRow]:
    """Returns the report rows of all tables, slowest first."""
    ordered = sorted(plan.tables, key=lambda table: (-table.forecast.ms, table.name))
    whole = sum(table.forecast.ms for table in plan.tables)
    return [_row(plan, table, whole) for table in ordered]


def _row(plan: Plan, table: Placed, whole: float) -> ReportRow:
    spec = plan.inputs.by_name[table.name] if plan.inputs else None
    share = table.forecast.ms / whole if whole > 0 else 0.0
    rows, dim = (spec.rows, spec.dim) if spec else (None, None)
    return ReportRow(table, rows, dim, share, next_best(plan, table))


def price_of(plan: Plan, hbm: int, ddr: int) -> float:
    """Returns the worth of bytes per rank at present memory prices, in milliseconds."""
    per_machine = min(plan.topology.world, plan.topology.ranks_per_machine)
    solver = plan.solver
    worth = hbm * solver.hbm_ms_per_gib + ddr * per_machine * solver.ddr_ms_per_gib_machine
    return worth / GIB


def cost_of(plan: Plan, choice: WeighedOption) -> float:
    """Returns the time of an option plus the price of its memory, in milliseconds."""
    return choice.ms + price_of(plan, choice.hbm, choice.ddr)


def choices_of(plan: Plan, name: str) -> tuple[WeighedOption, ...]:
    """Returns all options of a table. Empty if the plan has no inputs."""
    return plan.inputs.choices[name] if plan.inputs else ()


def next_best(plan: Plan, table: Placed) -> NextBest | None:
    """Returns the cheapest option that was not chosen, or None."""
    others = [
        choice
        for choice in choices_of(plan, table.name)
        if choice.label != table.variant.label and not choice.refused
    ]
    if not others:
        return None
    # Rounding must not decide between options of equal cost, which the prices cause often. Costs
    # closer than a picosecond count as equal; then the option with less HBM comes first.
    best = min(others, key=lambda choice: (round(cost_of(plan, choice), 9), choice.hbm, choice.ddr))
    return NextBest(
        best.label,
        best.ms - table.forecast.ms,
        best.hbm - table.hbm_bytes,
        best.ddr - table.ddr_bytes,
    )


def aligned(lines: Sequence[Sequence[str]], *, left: Collection[str] = ()) -> list[str]:
    """Returns the cells as aligned columns.

    The first line holds the column names. Columns named in `left` are left-aligned.

    >>> aligned([("table", "rows"), ("item", "7")], left=("table",))
    ['table  rows', 'item      7']
    """
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return [
        "  ".join(
            cell.ljust(width) if name in left else cell.rjust(width)
            for name, cell, width in zip(lines[0], line, widths, strict=True)
        ).rstrip()
        for line in lines
    ]


@dataclass(frozen=True, slots=True)
class Reason:
    """An option, its cost including the price of its memory, and why it was not chosen."""

    choice: WeighedOption
    cost_ms: float
    why: str


def reasons(plan: Plan, name: str) -> list[Reason]:
    """Returns all options of a table with reasons, in the order of evaluation."""
    table = plan.of(name)
    choices = choices_of(plan, name)
    if not choices:
        raise StateError(
            f"this plan's file does not hold the options of {name!r}; plan again to explain it."
        )
    taken = next((c for c in choices if c.label == table.variant.label), None)
    if taken is None:
        raise StateError(
            f"{name!r} is {table.variant.label} in the plan, which is none of the options that "
            f"were weighed; the file was changed by hand."
        )
    return [Reason(c, cost_of(plan, c), _why(plan, c, taken, choices)) for c in choices]


def _why(
    plan: Plan, choice: WeighedOption, taken: WeighedOption, choices: tuple[WeighedOption, ...]
) -> str:
    if choice is taken:
        return "chosen"
    if choice.refused:
        return choice.refused
    limits = plan.limits
    if choice.hbm > limits.hbm:
        return f"does not fit: a device has {format_bytes(limits.hbm)} of HBM for tables"
    if choice.ddr > limits.ddr_per_rank:
        return f"does not fit: a rank has {format_bytes(int(limits.ddr_per_rank))} of host memory"
    for other in choices:
        if _beats(other, choice):
            return f"{other.label} is no slower and takes no more of either memory"
    return _trade(plan, choice, taken)


def _beats(one: WeighedOption, other: WeighedOption) -> bool:
    better = (one.ms, one.hbm, one.ddr)
    worse = (other.ms, other.hbm, other.ddr)
    return (
        not one.refused
        and better != worse
        and all(a <= b for a, b in zip(better, worse, strict=True))
    )


def _trade(plan: Plan, choice: WeighedOption, taken: WeighedOption) -> str:
    """Returns a text that compares what an option gains with what it costs at present prices."""
    slower = choice.ms - taken.ms
    more = cost_of(plan, choice) - cost_of(plan, taken)
    worth = price_of(plan, choice.hbm - taken.hbm, choice.ddr - taken.ddr)
    memory, price = _memory(plan, choice, taken)
    if more < 0:
        return (
            f"{-more:.3g} ms better at today's prices, but the plan with it does not fit, or is "
            f"not the best as a whole"
        )
    if slower < 0:
        return f"{memory} more is dearer than its {-slower:.3g} ms are worth at {price}"
    if worth < 0:
        return f"saves {memory}, worth {-worth:.3g} ms at {price}, and takes {slower:.3g} ms more"
    return f"takes {slower:.3g} ms more, and memory that it saves is worth nothing today"


def _memory(plan: Plan, choice: WeighedOption, taken: WeighedOption) -> tuple[str, str]:
    """Returns the memory whose difference between two options is worth most, and its price."""
    hbm, ddr = choice.hbm - taken.hbm, choice.ddr - taken.ddr
    if abs(price_of(plan, hbm, 0)) >= abs(price_of(plan, 0, ddr)):
        price = plan.solver.hbm_ms_per_gib
        return f"HBM of {format_bytes(abs(hbm))}", f"today's price of {price:.3g} ms/GiB"
    price = plan.solver.ddr_ms_per_gib_machine
    words = f"today's price of {price:.3g} ms/GiB of a machine"
    return f"host memory of {format_bytes(abs(ddr))}", words


def explain_text(plan: Plan, name: str) -> str:
    """Returns the text of `Plan.explain`."""
    table, found = plan.of(name), reasons(plan, name)
    taken = next(reason.cost_ms for reason in found if reason.why == "chosen")
    head = ("option", "hit", "ms", "HBM", "host", "cost ms", "why")
    lines = [
        (
            reason.choice.label,
            f"{reason.choice.hit_rate:.1%}",
            f"{reason.choice.ms:.3f}",
            format_bytes(reason.choice.hbm),
            format_bytes(reason.choice.ddr),
            f"{reason.cost_ms - taken:+.4f}",
            reason.why,
        )
        for reason in found
    ]
    spec = plan.inputs.by_name[name] if plan.inputs else None
    size = f"{format_count(spec.rows)} x {spec.dim}, {spec.optimizer}" if spec else ""
    solver = plan.solver
    prices = (
        f"Prices: {solver.hbm_ms_per_gib:.3g} ms for a GiB of HBM of every device, "
        f"{solver.ddr_ms_per_gib_machine:.3g} ms for a GiB of every machine's host memory."
    )
    return "\n".join(
        [
            f"{name} ({size}): {table.variant.label}, {table.dist_type}, {table.sharding}",
            f"{format_count(table.rows_per_rank)} rows a rank of {table.row_bytes} B.  {prices}",
            "",
            *aligned([head, *lines], left=("option", "why")),
            "",
            "cost: time and the price of the memory it takes, against the chosen option.",
        ]
    )


CURVE = (0.5, 0.7, 0.85, 1.0, 1.15, 1.5, 2.0, 3.0)
"""Default sizes of a memory that a report compares, relative to the present size."""


def what_if(
    plan: Plan,
    *,
    hbm: int | None = None,
    ddr: int | None = None,
    world: int | None = None,
    batch: int | None = None,
    pin: Mapping[str, str] | None = None,
) -> Plan:
    """Implements `Plan.what_if`. Changes of memory and pins reuse the options that are stored."""
    from .json_values import calibration_of
    from .make_plan import finish, plan_from

    inputs = _inputs(plan)
    topology = _changed(plan.topology, hbm, ddr, world)
    if world is None and batch is None:
        return finish(inputs, topology, plan.budget.reserve, plan.calibration, pin=pin)
    if inputs.lacks_samples:
        raise StateError(
            f"what_if of another world or batch needs the samples of "
            f"{', '.join(inputs.lacks_samples)}, which a plan's file does not keep; plan again "
            f"from the tables."
        )
    settings = inputs.settings if batch is None else replace(inputs.settings, batch=batch)
    reserve = plan.budget.reserve
    known = calibration_of(plan.calibration)
    return plan_from(inputs.specs, topology, known, reserve, settings, pin=pin)


Curve = list[tuple[int, Plan | None]]
"""Pairs of a memory size and its plan, smallest size first. None where nothing fits."""


def hbm_curve(plan: Plan, sizes: Sequence[int] = ()) -> Curve:
    """Returns plans for other sizes of device memory."""
    card = min(plan.topology.hbm_by_device)
    return _curve(plan, "hbm", card, sizes or [int(card * share) for share in CURVE])


def host_curve(plan: Plan, sizes: Sequence[int] = ()) -> Curve:
    """Returns plans for other sizes of host memory."""
    pool = min(machine.ddr for machine in plan.topology.machines)
    return _curve(plan, "ddr", pool, sizes or [int(pool * share) for share in CURVE])


def _curve(plan: Plan, name: str, present: int, sizes: Sequence[int]) -> Curve:
    found: Curve = []
    for size in sorted(set(sizes)):
        try:
            other = plan
            if size != present:
                other = what_if(plan, hbm=size) if name == "hbm" else what_if(plan, ddr=size)
            found.append((size, other))
        except (PlanError, ConfigError):  # too small for the tables or the reserve
            found.append((size, None))
    return found


def _inputs(plan: Plan) -> PlanInputs:
    if plan.inputs is None:
        raise StateError(
            "this plan's file holds only decisions, not the options that were evaluated; plan "
            "again to use what_if."
        )
    return plan.inputs


def _changed(topology: Topology, hbm: int | None, ddr: int | None, world: int | None) -> Topology:
    sizes = {"hbm_per_device": topology.hbm_per_device, "ddr_per_machine": topology.ddr_per_machine}
    if hbm is not None:
        sizes["hbm_per_device"] = hbm
    if ddr is not None:
        sizes["ddr_per_machine"] = ddr
    if world is not None:  # per-rank lists belong to the old ranks
        sizes = {n: s if isinstance(s, int) else min(s) for n, s in sizes.items()}
    local = topology.ranks_per_machine
    return replace(
        topology,
        world=world or topology.world,
        local_world=min(local, world) if world else local,
        **sizes,
    )
