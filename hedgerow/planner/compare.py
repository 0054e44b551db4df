"""Compares a plan with tables, with machines, and with another plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import lcm
from typing import Any

from ..core.errors import ConfigError
from ..core.units import format_bytes, format_count
from .plan import Placed, Plan, WeighedOption
from .problem.options import Mode
from .problem.table_spec import TableSpec
from .problem.topology import Topology

FIELDS = ("dim", "dtype", "optimizer", "counter_rows", "dist_type", "rows")
"""The fields that determine a table's bytes and owners. How it is read only changes its time."""


class PlanMismatchError(ConfigError):
    """Tables, machines or ranks differ from those of the plan.

    The message lists the differences.
    """


@dataclass(frozen=True, slots=True)
class PlanCheck:
    """The result of a successful check: names of tables whose row counts differ from the plan."""

    drifted: tuple[str, ...] = ()


def check_tables(
    plan: Plan, tables: Sequence[TableSpec], *, accept_drift: bool = False
) -> PlanCheck:
    """Raises `PlanMismatchError` unless the tables match the plan. See `Plan.check`."""
    found = {table.name: table for table in tables}
    wrong = [f"{name}: not in the plan" for name in found if name not in plan.names]
    drifted: dict[str, tuple[int, int]] = {}
    for placed in plan.tables:
        if placed.name not in found:
            wrong.append(f"{placed.name}: in the plan, but not among the tables")
            continue
        for name, planned, now in _differences(plan, placed, found[placed.name]):
            if name == "rows" and accept_drift:
                drifted[placed.name] = (int(planned), int(now))
            else:
                wrong.append(
                    f"{placed.name}: {name} {_word(planned)} in the plan, {_word(now)} now"
                )
    if wrong:
        raise PlanMismatchError(_message(wrong, drift_alone=_only_rows(wrong)))
    _check_room(plan, drifted)
    return PlanCheck(tuple(drifted))


def _differences(plan: Plan, placed: Placed, now: TableSpec) -> list[tuple[str, Any, Any]]:
    """Returns (field, planned value, present value) of what differs.

    A plan without inputs knows only the routing rule.
    """
    if plan.inputs is None:
        same = placed.dist_type == now.dist_type
        return [] if same else [("dist_type", placed.dist_type, now.dist_type)]
    planned = plan.inputs.by_name[placed.name]
    found = [(name, getattr(planned, name), getattr(now, name)) for name in FIELDS]
    if placed.dist_type != planned.dist_type:  # the planner chose the rule, or the file was edited
        found = [pair for pair in found if pair[0] != "dist_type"]
        found.append(("dist_type", placed.dist_type, now.dist_type))
    return [(name, before, after) for name, before, after in found if before != after]


def _word(value: object) -> str:
    return format_count(value) if isinstance(value, int) else str(value)


def _only_rows(wrong: Sequence[str]) -> bool:
    return all(": rows " in line for line in wrong)


def _message(wrong: Sequence[str], *, drift_alone: bool) -> str:
    count = "1 table is" if len(wrong) == 1 else f"{len(wrong)} things are"
    fix = "plan again"
    if drift_alone:
        fix += ", or accept the drift (accept_drift=True, --accept-drift)"
    lines = "; ".join(wrong)
    return f"the plan is of other tables: {count} different: {lines}. To go on, {fix}."


def _check_room(plan: Plan, drifted: dict[str, tuple[int, int]]) -> None:
    """Raises unless the tables fit at their new sizes when the reserve may be used up."""
    if not drifted:
        return
    whole = plan.topology.budget()
    for memory, limit, field in (
        ("HBM of a device", Fraction(whole.hbm), "hbm_bytes"),
        ("host memory of a rank", whole.ddr_per_rank, "ddr_bytes"),
    ):
        more = Fraction(0)
        for name, (before, after) in drifted.items():
            more += getattr(plan.of(name), field) * (Fraction(after, before) - 1)
        now = getattr(plan, field) + more
        if now > limit and more > 0:
            raise PlanMismatchError(
                f"rows have changed beyond the reserve: {', '.join(drifted)} would take "
                f"{format_bytes(float(now))} of the {memory}, which has "
                f"{format_bytes(float(limit))}. Plan again."
            )


@dataclass(frozen=True, slots=True)
class TableChange:
    """A change of one table between two plans.

    `moved_bytes` are the bytes of rows that must move.
    """

    name: str
    before: str
    after: str
    moved_bytes: int


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """The changes between two plans: tables in the order of the newer plan, then removed tables."""

    changes: tuple[TableChange, ...]
    before_ms: float
    after_ms: float

    @property
    def moved_bytes(self) -> int:
        """Bytes that must move, over all tables and ranks."""
        return sum(change.moved_bytes for change in self.changes)

    def text(self) -> str:
        """Returns a text with one line per changed table, and a summary."""
        if not self.changes:
            return "no table changes"
        width = max(len(change.name) for change in self.changes)
        wide = max(len(change.before) for change in self.changes)
        lines = [
            f"{c.name:{width}}  {c.before:{wide}} -> {c.after}  moves {format_bytes(c.moved_bytes)}"
            for c in self.changes
        ]
        gain = f"{self.before_ms:.3f} -> {self.after_ms:.3f} ms a step"
        count = f"{len(lines)} table" + ("s change" if len(lines) > 1 else " changes")
        return "\n".join([*lines, f"{count}; {format_bytes(self.moved_bytes)} move; {gain}"])


def diff_plans(old: Plan, new: Plan) -> PlanDiff:
    """Returns the tables whose mode, factor or owners differ, with the bytes that must move."""
    before = {table.name: table for table in old.tables}
    changes = []
    for table in new.tables:
        earlier = before.pop(table.name, None)
        if earlier is None:
            changes.append(TableChange(table.name, "absent", _place(new, table), 0))
        elif _place(old, earlier) != _place(new, table):
            moved = _moved(old, earlier, new, table)
            words = (_place(old, earlier), _place(new, table))
            changes.append(TableChange(table.name, *words, moved))
    changes += [TableChange(t.name, _place(old, t), "absent", 0) for t in before.values()]
    return PlanDiff(tuple(changes), old.solver.total_ms, new.solver.total_ms)


def _place(plan: Plan, table: Placed) -> str:
    """Returns mode, factor and owners of a table as text."""
    if table.sharding == "table_wise":
        return f"{table.variant.label} on rank {table.rank}"
    if table.sharding == "copy":
        return f"{table.variant.label} on every rank"
    return f"{table.variant.label} {table.dist_type} over {plan.topology.world}"


def _moved(old: Plan, before: Placed, new: Plan, after: Placed) -> int:
    """Returns the bytes of rows that change owner, and of other rows that enter or leave HBM."""
    total = _rows(old, before) * before.row_bytes
    kept = _kept_by_owner(old, before, new, after)
    return int(total * (1 - kept)) + int(total * kept * _crossing(before, after))


def _rows(plan: Plan, table: Placed) -> int:
    """Returns the number of rows of a table over all ranks."""
    if plan.inputs is not None:
        return plan.inputs.by_name[table.name].rows
    return table.rows_per_rank * (plan.topology.world if table.sharding == "row_wise" else 1)


def _kept_by_owner(old: Plan, before: Placed, new: Plan, after: Placed) -> Fraction:
    """Returns the share of rows that keep their owner."""
    here, there = old.topology.world, new.topology.world
    kinds = (before.sharding, after.sharding)
    if kinds == ("row_wise", "row_wise"):
        if before.dist_type != after.dist_type:
            return Fraction(1, max(here, there))
        if before.dist_type == "continuous":
            return _kept_ranges(_rows(old, before), here, there)
        return Fraction(min(here, there), lcm(here, there))  # same owner in both
    if kinds == ("table_wise", "table_wise"):
        return Fraction(before.rank == after.rank)
    if before.sharding == "copy":  # every rank already had every row
        return Fraction(1)
    return Fraction(1, here if before.sharding == "row_wise" else there)


def _kept_ranges(rows: int, here: int, there: int) -> Fraction:
    """Returns the share of rows whose rank is the same under both numbers of ranks."""
    mine, theirs = -(-rows // here), -(-rows // there)
    kept = 0
    for rank in range(min(here, there)):
        begin = rank * max(mine, theirs)
        end = min((rank + 1) * min(mine, theirs), rows)
        kept += max(0, end - begin)
    return Fraction(kept, rows)


def _crossing(before: Placed, after: Placed) -> Fraction:
    """Returns the share of rows that must be copied to another memory of the same rank.

    A cache is refilled from the host, which has all rows. Leaving a cache writes back at most what
    it holds. Otherwise rows enter or leave HBM by the difference of the shares.
    """
    shares = [table.variant.share for table in (before, after)]
    if after.mode is Mode.CACHING and before.mode in (Mode.HOST_ONLY, Mode.CACHING):
        return max(Fraction(0), shares[1] - shares[0])
    if after.mode is Mode.CACHING:  # rows in HBM are copied to the host
        return shares[0]
    if before.mode is Mode.CACHING:  # at most the cached rows are written back; HBM rows are loaded
        return shares[1] if after.mode is not Mode.HOST_ONLY else shares[0]
    return abs(shares[1] - shares[0])


THRESHOLD = 0.05


@dataclass(frozen=True, slots=True)
class Kept:
    """The plan to use, and the reason. `gain` is the share of a step that the newer plan saves."""

    plan: Plan
    is_old: bool
    gain: float
    reason: str


def keep_plan(old: Plan, new: Plan, *, threshold: float = THRESHOLD) -> Kept:
    """Returns the old choices at their present cost, unless `new` is faster by `threshold`.

    `new` must be a plan of the same tables as they are now. Its options give the present cost of
    the old choices. If those are not possible any more, `new` is returned.

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
    """Returns the old choices with present bytes and times, or why they are impossible."""
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


def _choice(plan: Plan, name: str, label: str) -> WeighedOption | None:
    choices = () if plan.inputs is None else plan.inputs.choices[name]
    return next((c for c in choices if c.label == label and not c.refused), None)


def shortages(plan: Plan, topology: Topology) -> list[str]:
    """Returns what `topology` lacks for the plan.

    Empty if it suffices; the reserve may be used up.
    """
    wrong = []
    if topology.world != plan.topology.world:
        wrong.append(f"the plan is for {plan.topology.world} ranks, not {topology.world}")
        return wrong
    on_cards = [table.name for table in plan.tables if table.mode is not Mode.HOST_ONLY]
    if topology.device == "cpu" and on_cards:
        return [f"there are no cards, and {len(on_cards)} tables need HBM: {', '.join(on_cards)}"]
    loads = plan.loads()
    if topology.device != "cpu":
        for rank, (load, size) in enumerate(zip(loads, topology.hbm_by_device, strict=True)):
            if load.hbm > size:
                wrong.append(_short(f"HBM of rank {rank}", load.hbm, size))
    first = 0
    for number, machine in enumerate(topology.machines):
        used = sum(load.ddr for load in loads[first : first + machine.ranks])
        first += machine.ranks
        if used > machine.ddr:
            wrong.append(_short(f"host memory of machine {number}", used, machine.ddr))
    return wrong


def _short(what: str, used: int, size: int) -> str:
    need, has = format_bytes(used), format_bytes(size)
    return f"{what}: needs {need}, has {has}: short by {format_bytes(used - size)}"
