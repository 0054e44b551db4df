"""Whether a job that starts again keeps its plan: moving rows must be worth it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .plan import Plan
from .plan_inputs import Choice

THRESHOLD = 0.05


@dataclass(frozen=True, slots=True)
class Kept:
    """The plan to take, and why. `gain` is the share of a step that the newer plan would save."""

    plan: Plan
    is_old: bool
    gain: float
    reason: str


def keep_plan(old: Plan, new: Plan, *, threshold: float = THRESHOLD) -> Kept:
    """The old choices, at what they cost now, unless the new plan is faster by the threshold.

    `new` is a plan of the same tables as they are today. The old choices are priced with its
    options; if they are not possible any more, the new plan is taken.

    >>> from hedgerow.planner import TableSpec, Topology, plan
    >>> machine = Topology(world=2, ddr_per_machine=2**33, device="cpu")
    >>> today = plan([TableSpec(name="item", rows=1000, dim=8)], machine)
    >>> keep_plan(today, today).reason
    'the new plan would save 0.0%, not over 5%'
    """
    if new.inputs is None:
        return Kept(new, False, 0.0, "the new plan has no options to price the old one with")
    prior = _repriced(old, new)
    if isinstance(prior, str):
        return Kept(new, False, 0.0, f"the old plan is not possible any more: {prior}")
    before, after = prior.solver.total_ms, new.solver.total_ms
    gain = 0.0 if before <= 0 else max(0.0, 1 - after / before)
    if gain > threshold:
        return Kept(new, False, gain, f"the new plan takes {gain:.1%} less time")
    return Kept(prior, True, gain, f"the new plan would save {gain:.1%}, not over {threshold:.0%}")


def _repriced(old: Plan, new: Plan) -> Plan | str:
    """The old choices with today's bytes and times, or why they are not possible."""
    if set(old.names) != set(new.names):
        return "the tables are others"
    if old.topology.world != new.topology.world:
        return f"it is of {old.topology.world} ranks, not {new.topology.world}"
    tables = []
    for line in new.tables:
        was = old.of(line.name)
        if (was.sharding, was.rank, was.dist_type) != (line.sharding, line.rank, line.dist_type):
            return f"{line.name} has another owner"
        choice = _choice(new, line.name, was.variant.label)
        if choice is None:
            return f"{line.name} has no {was.variant.label} now"
        forecast = replace(line.forecast, ms=choice.ms, hit_rate=choice.hit_rate)
        sizes = {"hbm_bytes": choice.hbm, "ddr_bytes": choice.ddr}
        tables.append(replace(line, variant=was.variant, forecast=forecast, **sizes))
    total = sum(table.forecast.ms for table in tables)
    bound = min(new.solver.lower_bound_ms, total)
    gap = 0.0 if total <= 0 else (total - bound) / total
    solver = replace(new.solver, status="kept", total_ms=total, lower_bound_ms=bound, gap=gap)
    found = replace(new, tables=tuple(tables), solver=solver)
    limits = found.limits
    if found.hbm_bytes > limits.hbm or found.ddr_bytes > limits.ddr_per_rank:
        return "it does not fit"
    return found


def _choice(plan: Plan, name: str, label: str) -> Choice | None:
    choices = () if plan.inputs is None else plan.inputs.choices[name]
    return next((c for c in choices if c.label == label and not c.refused), None)
