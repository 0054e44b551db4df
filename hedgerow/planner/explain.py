"""Why a table lives where it does: all of its options, and the reason each of them lost."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.errors import StateError
from ..core.units import format_bytes, format_count
from .plan import Plan
from .plan_inputs import Choice
from .report_rows import choices_of, cost_of, price_of
from .text_table import aligned


@dataclass(frozen=True, slots=True)
class Reason:
    """An option, what it costs with the price of its memory, and why it was not taken."""

    choice: Choice
    cost_ms: float
    why: str


def reasons(plan: Plan, name: str) -> list[Reason]:
    """All options of a table in the order in which they were tried."""
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


def _why(plan: Plan, choice: Choice, taken: Choice, choices: tuple[Choice, ...]) -> str:
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


def _beats(one: Choice, other: Choice) -> bool:
    better = (one.ms, one.hbm, one.ddr)
    worse = (other.ms, other.hbm, other.ddr)
    return (
        not one.refused
        and better != worse
        and all(a <= b for a, b in zip(better, worse, strict=True))
    )


def _trade(plan: Plan, choice: Choice, taken: Choice) -> str:
    """What it wins against what it pays at today's prices."""
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


def _memory(plan: Plan, choice: Choice, taken: Choice) -> tuple[str, str]:
    """The memory in which two options differ most in worth, and its price."""
    hbm, ddr = choice.hbm - taken.hbm, choice.ddr - taken.ddr
    if abs(price_of(plan, hbm, 0)) >= abs(price_of(plan, 0, ddr)):
        price = plan.solver.hbm_ms_per_gib
        return f"HBM of {format_bytes(abs(hbm))}", f"today's price of {price:.3g} ms/GiB"
    price = plan.solver.ddr_ms_per_gib_machine
    words = f"today's price of {price:.3g} ms/GiB of a machine"
    return f"host memory of {format_bytes(abs(ddr))}", words


def explain_text(plan: Plan, name: str) -> str:
    """See `Plan.explain`."""
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
