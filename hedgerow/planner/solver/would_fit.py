"""What would make a problem fit: more machines, fewer rows, less optimizer state, larger cards."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from ..problem.option import TableOptions
from ..problem.solution import Shortfall
from ..problem.table_spec import TableSpec
from ..problem.topology import GIB, Reserve, Topology
from .feasible import fits

Weigh = Callable[[Sequence[TableSpec], Topology], Sequence[TableOptions]]
"""The options of tables on machines: what the plan itself was tried with."""

_MOST_TIMES = 64  # no one multiplies machines by more than this to make a plan fit
_ROWWISE = "rowwise_adagrad"
_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def would_fit(
    tables: Sequence[TableSpec],
    topology: Topology,
    hbm: Shortfall,
    weigh: Weigh,
    reserve: Reserve,
) -> list[str]:
    """Changes of one thing each, every one checked to fit. `topology` has its reserve taken off."""
    asked = _Asked(tables, topology, weigh)
    found = [asked.devices(), asked.rows(), asked.rowwise(), _cards(hbm, reserve)]
    return [hint for hint in found if hint]


class _Asked:
    """The problem, asked again with something changed."""

    def __init__(self, tables: Sequence[TableSpec], topology: Topology, weigh: Weigh) -> None:
        self._tables, self._topology, self._weigh = list(tables), topology, weigh

    def _fits(self, tables: Sequence[TableSpec], topology: Topology) -> bool:
        return fits(self._weigh(tables, topology), topology.budget())

    def devices(self) -> str:
        """The fewest devices on machines as the poorest of these."""
        now, local = self._topology.world, self._topology.ranks_per_machine
        step = max(1, local // 2)  # machines are had whole or by halves

        def fit(steps: int) -> bool:
            return self._fits(self._tables, self._on(steps * step))

        short, enough = now // step, now // step + 2
        # In growing steps: buffers of a step grow with the ranks, so the most need not fit.
        while not fit(enough):
            short, enough = enough, enough + max(2, enough // 2)
            if enough * step > _MOST_TIMES * now:
                return ""
        least = step * _least(short + 1, enough, fit)
        machines = -(-least // local)
        name = "devices" if self._topology.device == "cuda" else "ranks"
        full = (machines - 1) * local  # on one machine less
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
        """How many rows the largest table may have, in two digits."""
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
        if not fit(rows):  # sizes go up in steps: the row below may be dearer than the one above
            return ""
        return f"`{largest.name}` with at most {_short(rows)} rows"

    def rowwise(self) -> str:
        """One number of state a row instead of some for each value."""
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
    """What a card must have, the reserve included: what a user asks for."""
    if hbm.least_joint is None:
        return ""
    whole = (hbm.least_joint + reserve.hbm_bytes) / (1 - reserve.hbm_fraction)
    return f"{math.ceil(whole / GIB * 10) / 10:.1f} GiB HBM per device"


def _values(table: TableSpec) -> int:
    return table.rows * table.dim


def _least(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The least number from `low` to `high` from which on it holds; `high` if only there.

    >>> _least(1, 100, lambda number: number >= 37)
    37
    """
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _short(rows: int) -> str:
    """Two digits and a unit, as people say it.

    >>> _short(7_600_000), _short(12_000), _short(530)
    ('7.6 M', '12 k', '530')
    """
    for unit, name in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if rows >= unit:
            return f"{rows / unit:.3g} {name}"
    return str(rows)
