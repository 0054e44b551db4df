"""Whether tables are those that a plan was made for; what differs is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..core.errors import ConfigError
from ..core.units import format_bytes, format_count
from .placed import Placed
from .plan import Plan
from .problem.table_spec import TableSpec

FIELDS = ("dim", "dtype", "optimizer", "counter_rows", "dist_type", "rows")
"""What decides a table's bytes and owners; how it is read only changes its time."""


class PlanMismatchError(ConfigError):
    """Tables, machines or ranks other than a plan was made for. The message lists what differs."""


@dataclass(frozen=True, slots=True)
class PlanCheck:
    """What was found, where it was no error: tables whose row counts have changed."""

    drifted: tuple[str, ...] = ()


def check_tables(
    plan: Plan, tables: Sequence[TableSpec], *, accept_drift: bool = False
) -> PlanCheck:
    """Raises unless the tables are the plan's; see `Plan.check`."""
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
    """Field, as planned, as it is. A plan without inputs knows the owner rule alone."""
    if plan.inputs is None:
        same = placed.dist_type == now.dist_type
        return [] if same else [("dist_type", placed.dist_type, now.dist_type)]
    planned = plan.inputs.by_name[placed.name]
    found = [(name, getattr(planned, name), getattr(now, name)) for name in FIELDS]
    if placed.dist_type != planned.dist_type:  # the routing that the plan chose, or an edited line
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
    """The tables at their new sizes fit the machines with nothing kept free."""
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
