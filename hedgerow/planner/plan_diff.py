"""What changes from one plan to another, and the bytes that must move for it."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import lcm

from ..core.units import format_bytes
from .placed import Placed
from .plan import Plan
from .problem.variant import Mode


@dataclass(frozen=True, slots=True)
class TableChange:
    """One table: what it was, what it becomes, and the bytes of rows that change their place."""

    name: str
    before: str
    after: str
    moved_bytes: int


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """Tables in the order of the newer plan, then those that are gone."""

    changes: tuple[TableChange, ...]
    before_ms: float
    after_ms: float

    @property
    def moved_bytes(self) -> int:
        """Of all tables, over all ranks."""
        return sum(change.moved_bytes for change in self.changes)

    def text(self) -> str:
        """A line a table that changes."""
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
    """Mode, factor and owner of every table, before and after."""
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
    """Mode, factor and owner, as people read them."""
    if table.sharding == "table_wise":
        return f"{table.variant.label} on rank {table.rank}"
    if table.sharding == "copy":
        return f"{table.variant.label} on every rank"
    return f"{table.variant.label} {table.dist_type} over {plan.topology.world}"


def _moved(old: Plan, before: Placed, new: Plan, after: Placed) -> int:
    """Rows that get another owner, and rows of the others that enter or leave HBM."""
    total = _rows(old, before) * before.row_bytes
    kept = _kept_by_owner(old, before, new, after)
    return int(total * (1 - kept)) + int(total * kept * _crossing(before, after))


def _rows(plan: Plan, table: Placed) -> int:
    """All rows of a table."""
    if plan.inputs is not None:
        return plan.inputs.by_name[table.name].rows
    return table.rows_per_rank * (plan.topology.world if table.sharding == "row_wise" else 1)


def _kept_by_owner(old: Plan, before: Placed, new: Plan, after: Placed) -> Fraction:
    """The share of rows whose owner stays."""
    here, there = old.topology.world, new.topology.world
    kinds = (before.sharding, after.sharding)
    if kinds == ("row_wise", "row_wise"):
        if before.dist_type != after.dist_type:
            return Fraction(1, max(here, there))
        if before.dist_type == "continuous":
            return _kept_ranges(_rows(old, before), here, there)
        return Fraction(min(here, there), lcm(here, there))  # the same remainder of both
    if kinds == ("table_wise", "table_wise"):
        return Fraction(before.rank == after.rank)
    if before.sharding == "copy":  # whoever owns rows now had them
        return Fraction(1)
    return Fraction(1, here if before.sharding == "row_wise" else there)


def _kept_ranges(rows: int, here: int, there: int) -> Fraction:
    """Ranges that a rank has in both worlds."""
    mine, theirs = -(-rows // here), -(-rows // there)
    kept = 0
    for rank in range(min(here, there)):
        begin = rank * max(mine, theirs)
        end = min((rank + 1) * min(mine, theirs), rows)
        kept += max(0, end - begin)
    return Fraction(kept, rows)


def _crossing(before: Placed, after: Placed) -> Fraction:
    """The share of rows that must be written into another memory of the same rank.

    A cache is refilled from the host, where all rows are; leaving one writes nothing but what it
    holds that is newer. Otherwise rows enter or leave HBM by the difference of the shares.
    """
    shares = [table.variant.share for table in (before, after)]
    if after.mode is Mode.CACHING and before.mode in (Mode.HOST_ONLY, Mode.CACHING):
        return max(Fraction(0), shares[1] - shares[0])
    if after.mode is Mode.CACHING:  # the whole table goes to the host, less what was there
        return shares[0]
    if before.mode is Mode.CACHING:  # at most what the cache holds goes back; HBM rows come in
        return shares[1] if after.mode is not Mode.HOST_ONLY else shares[0]
    return abs(shares[1] - shares[0])
