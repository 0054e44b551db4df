"""What a report says of each table: its numbers, and the option that would come next."""

from __future__ import annotations

from dataclasses import dataclass

from .placed import Placed
from .plan import Plan
from .plan_inputs import Choice
from .problem.topology import GIB


@dataclass(frozen=True, slots=True)
class NextBest:
    """The option that costs least beside the chosen one at today's prices, and what it changes."""

    label: str
    ms: float
    hbm: int
    ddr: int


@dataclass(frozen=True, slots=True)
class ReportRow:
    """One table of a report. Rows and dim are None where the plan's file has decisions alone."""

    table: Placed
    rows: int | None
    dim: int | None
    share: float  # of the step
    next_best: NextBest | None


def report_rows(plan: Plan) -> list[ReportRow]:
    """All tables, the slowest first."""
    ordered = sorted(plan.tables, key=lambda table: (-table.forecast.ms, table.name))
    whole = sum(table.forecast.ms for table in plan.tables)
    return [_row(plan, table, whole) for table in ordered]


def _row(plan: Plan, table: Placed, whole: float) -> ReportRow:
    spec = plan.inputs.by_name[table.name] if plan.inputs else None
    share = table.forecast.ms / whole if whole > 0 else 0.0
    rows, dim = (spec.rows, spec.dim) if spec else (None, None)
    return ReportRow(table, rows, dim, share, next_best(plan, table))


def price_of(plan: Plan, hbm: int, ddr: int) -> float:
    """What bytes of a rank are worth at today's prices, in milliseconds."""
    per_machine = min(plan.topology.world, plan.topology.ranks_per_machine)
    solver = plan.solver
    worth = hbm * solver.hbm_ms_per_gib + ddr * per_machine * solver.ddr_ms_per_gib_machine
    return worth / GIB


def cost_of(plan: Plan, choice: Choice) -> float:
    """Time of an option, and the price of the memory it takes."""
    return choice.ms + price_of(plan, choice.hbm, choice.ddr)


def choices_of(plan: Plan, name: str) -> tuple[Choice, ...]:
    """All options of a table; none where the file has decisions alone."""
    return plan.inputs.choices[name] if plan.inputs else ()


def next_best(plan: Plan, table: Placed) -> NextBest | None:
    """Of the options that were not taken."""
    others = [
        choice
        for choice in choices_of(plan, table.name)
        if choice.label != table.variant.label and not choice.refused
    ]
    if not others:
        return None
    # The prices make some options cost the same but for the rounding of their sums, which must not
    # choose: below a picosecond it is a tie, and the one with less memory on the device is named.
    best = min(others, key=lambda choice: (round(cost_of(plan, choice), 9), choice.hbm, choice.ddr))
    return NextBest(
        best.label,
        best.ms - table.forecast.ms,
        best.hbm - table.hbm_bytes,
        best.ddr - table.ddr_bytes,
    )
