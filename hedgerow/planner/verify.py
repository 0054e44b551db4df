"""Compares measured times with a plan's predictions, and estimates whether planning again pays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..core import checks
from ..core.errors import InputError
from .compare import THRESHOLD
from .plan import Plan
from .problem.options import TableOptions


@dataclass(frozen=True, slots=True)
class Observed:
    """Measurements of a table or group: milliseconds per step, and the hit rate if it was counted.

    >>> Observed(0.25, hit_rate=0.9)
    Observed(ms=0.25, hit_rate=0.9)
    """

    ms: float
    hit_rate: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.ms < float("inf"):
            raise InputError(f"Observed.ms is {self.ms!r}; give milliseconds a step.")
        if self.hit_rate is not None and not 0 <= self.hit_rate <= 1:
            raise InputError(f"Observed.hit_rate is {self.hit_rate!r}; give a share from 0 to 1.")


@dataclass(frozen=True, slots=True)
class Compared:
    """Predicted and measured values of one table or group."""

    name: str
    said_ms: float
    ms: float
    said_hit_rate: float
    hit_rate: float | None

    @property
    def ratio(self) -> float:
        """Measured time divided by predicted time."""
        return self.ms / self.said_ms if self.said_ms > 0 else float("inf" if self.ms else 1)


@dataclass(frozen=True, slots=True)
class Verification:
    """The comparison of all tables, and what planning again would save. `gain` is None if unknown.

    `gain` scales the predicted time of every option of a table by the ratio measured for the chosen
    option. It is an estimate: there is only one measurement per table.
    """

    lines: tuple[Compared, ...]
    gain: float | None
    threshold: float = THRESHOLD

    @property
    def worth_planning(self) -> bool:
        """Whether another plan would gain more than the threshold."""
        return self.gain is not None and self.gain > self.threshold

    def text(self) -> str:
        """Returns a text with one line per table or group, and a recommendation."""
        width = max([len(line.name) for line in self.lines] or [0])
        shown = [_line(line, width) for line in self.lines]
        if self.gain is None:
            return "\n".join([*shown, "no options in this plan: plan again to compare"])
        verdict = "plan again" if self.worth_planning else f"keep it: not over {self.threshold:.0%}"
        return "\n".join([*shown, f"another plan would gain {self.gain:.1%}: {verdict}"])


def _line(line: Compared, width: int) -> str:
    times = f"{line.ms:.3f} ms, planned {line.said_ms:.3f} ({line.ratio:.2f}x)"
    if line.hit_rate is None:
        return f"{line.name:{width}}  {times}"
    hits = f"hits {line.hit_rate:.1%}, planned {line.said_hit_rate:.1%}"
    return f"{line.name:{width}}  {times}  {hits}"


def verify(plan: Plan, observed: Mapping[str, Observed]) -> Verification:
    """Implements `Plan.verify`. Names are those of tables or groups."""
    members = _members(plan)
    lines, factors = [], dict[str, float]()
    for name, seen in observed.items():
        if name not in members:
            checks.unknown("table or group", name, members)
        tables = [plan.of(table) for table in members[name]]
        said = sum(table.forecast.ms for table in tables)
        hits = [table.forecast.hit_rate for table in tables]
        line = Compared(name, said, seen.ms, sum(hits) / len(hits), seen.hit_rate)
        lines.append(line)
        factors |= {t.name: line.ratio for t in tables if 0 < line.ratio < float("inf")}
    return Verification(tuple(lines), _gain(plan, factors))


def _members(plan: Plan) -> dict[str, list[str]]:
    """Returns table names by table name and by group name."""
    found: dict[str, list[str]] = {}
    for table in plan.tables:
        if table.group is not None:
            found.setdefault(table.group, []).append(table.name)
    return {**found, **{name: [name] for name in plan.names}}


def _gain(plan: Plan, factors: Mapping[str, float]) -> float | None:
    """Returns what the best plan saves if all options of a table are off by one measured factor."""
    from .solver.solve import solve

    if plan.inputs is None or any(table.sharding != "row_wise" for table in plan.tables):
        return None
    scaled = [
        TableOptions(
            table.name,
            tuple(replace(o, ms=o.ms * factors.get(table.name, 1.0)) for o in table.options),
        )
        for table in plan.inputs.options()
    ]
    now = sum(table.forecast.ms * factors.get(table.name, 1.0) for table in plan.tables)
    best = solve(scaled, plan.limits, time_limit=plan.inputs.settings.time_limit)
    return 0.0 if now <= 0 else max(0.0, 1 - best.ms / now)
