"""Explains in words why a plan does not fit: what is missing, and what would fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from ...core.units import format_count
from ..problem.options import PlanError, Shortfall, TableOptions
from ..problem.table_spec import TableSpec
from ..problem.topology import GIB, Machine, Reserve, Topology
from .solve import fits

Weigh = Callable[[Sequence[TableSpec], Topology], Sequence[TableOptions]]
"""Returns the options of tables on given machines."""

_MOST_TIMES = 64  # larger jobs are not suggested
_ROWWISE = "rowwise_adagrad"
_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def would_fit(
    tables: Sequence[TableSpec],
    topology: Topology,
    hbm: Shortfall,
    weigh: Weigh,
    reserve: Reserve,
) -> list[str]:
    """Returns suggestions that change one thing each. Every one was checked to fit.

    `topology` already has its reserve subtracted.
    """
    asked = _FitQuestion(tables, topology, weigh)
    found = [asked.devices(), asked.rows(), asked.rowwise(), _cards(hbm, reserve)]
    return [hint for hint in found if hint]


class _FitQuestion:
    """Checks whether the problem fits after a change."""

    def __init__(self, tables: Sequence[TableSpec], topology: Topology, weigh: Weigh) -> None:
        self._tables, self._topology, self._weigh = list(tables), topology, weigh

    def _fits(self, tables: Sequence[TableSpec], topology: Topology) -> bool:
        return fits(self._weigh(tables, topology), topology.budget())

    def devices(self) -> str:
        """Returns the fewest devices, on machines like the smallest of these, as text."""
        now, local = self._topology.world, self._topology.ranks_per_machine
        step = max(1, local // 2)  # machines are added whole or by halves

        def fit(steps: int) -> bool:
            return self._fits(self._tables, self._on(steps * step))

        short, enough = now // step, now // step + 2
        # Step buffers grow with the number of ranks, so a very large number may not fit either.
        while not fit(enough):
            short, enough = enough, enough + max(2, enough // 2)
            if enough * step > _MOST_TIMES * now:
                return ""
        least = step * _least(short + 1, enough, fit)
        machines = -(-least // local)
        name = "devices" if self._topology.device == "cuda" else "ranks"
        full = (machines - 1) * local  # devices of one machine less
        less = f" ({full} do not)" if now <= full < least else ""
        return f"{least} {name} on {machines} such machine{'s' * (machines > 1)}{less}"

    def _on(self, world: int) -> Topology:
        pools = [machine.ddr for machine in self._topology.machines]
        return replace(
            self._topology,
            world=world,
            hbm_per_device=min(self._topology.hbm_by_device),
            ddr_per_machine=min(pools),
        )

    def rows(self) -> str:
        """Returns how many rows the largest table may have, with two digits, as text."""
        place = max(range(len(self._tables)), key=lambda i: _values(self._tables[i]))
        largest = self._tables[place]
        others = self._tables[:place] + self._tables[place + 1 :]
        weighed, budget = self._weigh(others, self._topology), self._topology.budget()

        def fit(rows: int) -> bool:
            changed = self._weigh([replace(largest, rows=rows)], self._topology)
            return fits([*weighed, *changed], budget)

        if not fit(1):
            return ""
        rows = _least(2, largest.rows, lambda rows: not fit(rows)) - 1
        unit = 10 ** max(0, len(str(rows)) - 2)
        rows = rows // unit * unit
        if not fit(rows):  # sizes grow in steps, so fewer rows may need more bytes
            return ""
        return f"`{largest.name}` with at most {_short(rows)} rows"

    def rowwise(self) -> str:
        """Returns the suggestion to use row-wise Adagrad, which has one state value per row."""
        tables = [replace(table, optimizer=_ROWWISE) for table in self._tables]
        if all(table.optimizer == _ROWWISE for table in self._tables):
            return ""
        if not self._fits(tables, self._topology):
            return ""
        count = len(tables)
        if count <= 2:
            return "row-wise Adagrad" + " on both tables" * (count == 2)
        number = _WORDS[count] if count < len(_WORDS) else f"{count:,}"
        return f"row-wise Adagrad on all {number} tables"


def _cards(hbm: Shortfall, reserve: Reserve) -> str:
    """Returns the HBM that a device must have, including the reserve, as text."""
    if hbm.least_joint is None:
        return ""
    whole = (hbm.least_joint + reserve.hbm_bytes) / (1 - reserve.hbm_fraction)
    return f"{math.ceil(whole / GIB * 10) / 10:.1f} GiB HBM per device"


def _values(table: TableSpec) -> int:
    return table.rows * table.dim


def _least(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Returns the least number from `low` to `high` from which on `holds` is true.

    Returns `high` if it is true only there.

    >>> _least(1, 100, lambda number: number >= 37)
    37
    """
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _short(rows: int) -> str:
    """Returns a number of rows with about three digits and a unit.

    >>> _short(7_600_000), _short(12_000), _short(530)
    ('7.6 M', '12 k', '530')
    """
    for unit, name in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if rows >= unit:
            return f"{rows / unit:.3g} {name}"
    return str(rows)


_MOST_TABLES = 10  # listed by name; others are counted


NOTHING_KEPT = Reserve(hbm_fraction=0, ddr_fraction=0)


def explained(
    error: PlanError,
    tables: Sequence[TableSpec],
    topology: Topology,
    weigh: Weigh,
    reserve: Reserve = NOTHING_KEPT,
) -> PlanError:
    """Returns the error with a readable text and suggestions that were checked to fit.

    `topology` already has its reserve subtracted. `weigh` returns the options of changed tables on
    changed machines.
    """
    if error.kind != "infeasible" or len(error.shortfalls) != 2:
        return error
    hbm, ddr = error.shortfalls
    hints = would_fit(tables, topology, hbm, weigh, reserve)
    lines = [_heading(tables, topology), *_memories(hbm, ddr, topology)]
    lines += _tables(error.never_fit, tables, weigh(tables, topology))
    if reserve != NOTHING_KEPT:
        lines += [_in_bytes(hbm, ddr), _kept(reserve)]
    if hints:
        lines.append(f"Would fit: {', or '.join(hints)}.")
    return PlanError(
        "\n".join(lines),
        kind=error.kind,
        shortfalls=error.shortfalls,
        never_fit=error.never_fit,
        hints=hints,
    )


def _heading(tables: Sequence[TableSpec], topology: Topology) -> str:
    name = "device" if topology.device == "cuda" else "rank"
    counts = [
        _counted(len(tables), "table"),
        _counted(topology.world, name),
        _counted(len(topology.machines), "machine"),
    ]
    return f"Does not fit: {counts[0]} on {counts[1]} ({counts[2]})."


def _counted(count: int, name: str) -> str:
    return f"{count:,} {name}{'s' * (count != 1)}"


def _memories(hbm: Shortfall, ddr: Shortfall, topology: Topology) -> list[str]:
    """Returns one line per memory that is short, with the assumption about the other."""
    poorest = min(topology.machines, key=_share)
    found = []
    if topology.device == "cuda":
        found.append((_memory("HBM ", "device", hbm, 1), "host memory kept within its budget"))
    found.append((_memory("host", "machine", ddr, poorest.ranks), "HBM kept within its budget"))
    width = max(len(line) for line, _ in found) + 4
    alone = topology.device != "cuda"
    plain = [alone or "suffices" in line for line, _ in found]
    return [
        line if bare else f"{line:{width}}({why})"
        for bare, (line, why) in zip(plain, found, strict=True)
    ]


def _share(machine: Machine) -> float:
    return machine.ddr / machine.ranks


def _memory(name: str, scope: str, short: Shortfall, ranks: int) -> str:
    budget = float(short.budget) * ranks
    if short.least_joint is None:
        other = "HBM" if short.memory == "ddr" else "host memory"
        return (
            f"  {name} has {_gib(budget)} GiB per {scope}: no amount suffices, since {other} "
            f"alone is short"
        )
    needs = short.least_joint * ranks
    return (
        f"  {name} needs {_gib(needs)} GiB per {scope}, has {_gib(budget)}: "
        f"short by {_gib(needs - budget)} GiB"
    )


def _in_bytes(hbm: Shortfall, ddr: Shortfall) -> str:
    """Returns the missing bytes exactly, because a plan may fail by a single byte."""
    parts = []
    for name, scope, short in (("HBM", "device", hbm), ("host", "rank", ddr)):
        joint, alone = short.short_joint, math.ceil(short.short_alone)
        beside = "by no amount" if joint is None else f"by {math.ceil(joint):,} B"
        parts.append(f"{name} {beside} per {scope} ({alone:,} B if the other were unlimited)")
    return f"  Short, exactly: {', '.join(parts)}."


def _kept(reserve: Reserve) -> str:
    return (
        f"  Kept free already: {reserve.hbm_fraction:.0%} of HBM and {reserve.hbm_bytes:,} B, "
        f"{reserve.ddr_fraction:.0%} of host memory and {reserve.ddr_bytes:,} B."
    )


def _gib(size: float) -> str:
    """Returns GiB with three digits, and at least two decimals below ten.

    >>> _gib(3829035640), _gib(43009179648), _gib(0)
    ('3.57', '40.1', '0.00')
    """
    value = size / GIB
    return f"{value:,.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def _tables(
    names: Sequence[str], tables: Sequence[TableSpec], options: Sequence[TableOptions]
) -> list[str]:
    specs = {spec.name: spec for spec in tables}
    ways = {table.name: table.options for table in options}
    lines = []
    for name in names[:_MOST_TABLES]:
        spec, least = specs[name], min(ways[name], key=lambda option: (option.hbm, option.ddr))
        lines.append(
            f"  {name} ({format_count(spec.rows)} x {spec.dim}, {spec.optimizer}): no variant "
            f"fits on its own; smallest HBM {_gib(least.hbm)} GiB with {_gib(least.ddr)} GiB host "
            f"per rank"
        )
    if len(names) > _MOST_TABLES:
        lines.append(f"  and {len(names) - _MOST_TABLES:,} more tables that fit in no variant")
    return lines
