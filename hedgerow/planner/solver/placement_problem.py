"""Placement as arrays: options on all ranks or on one, the ranks, and the machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...core import checks
from ..problem.options import PlanError
from .choice_problem import NS_PER_MS, Floats, Ints

KINDS = ("row", "table", "copy")
WHOLE_SHARE = 0.05
"""The share of a device above which whole tables make the bound loose, so that rows are split
too."""


@dataclass(frozen=True, slots=True)
class PlacementOption:
    """One way to place a table. "row" and "copy" use bytes and time on every rank, "table" on one.

    >>> PlacementOption("whole", "table", hbm=10, ddr=0, ms=2.0).everywhere
    False
    """

    label: str
    kind: str
    hbm: int
    ddr: int
    ms: float

    def __post_init__(self) -> None:
        checks.choice("PlacementOption", "kind", self.kind, KINDS)
        for name in ("hbm", "ddr"):
            checks.whole("PlacementOption", name, getattr(self, name))
        checks.setting("PlacementOption", "ms", self.ms, least=0)

    @property
    def everywhere(self) -> bool:
        """Whether all ranks hold a part of the table."""
        return self.kind != "table"


@dataclass(frozen=True, slots=True)
class PlacementTable:
    """A table and the ways to place it. Their order breaks the last ties."""

    name: str
    options: tuple[PlacementOption, ...]


def small_enough(table: PlacementTable, hbm: int, share: float = WHOLE_SHARE) -> PlacementTable:
    """Returns the table without whole-table options above a share of a device, if others remain."""
    kept = tuple(o for o in table.options if o.everywhere or o.hbm <= share * hbm)
    return PlacementTable(table.name, kept) if kept else table


@dataclass(frozen=True, slots=True, eq=False)
class RankLimits:
    """The HBM bytes of each rank, the machine of each rank, and the host bytes of each machine."""

    hbm: Ints
    machine: Ints
    pool: Ints

    @property
    def count(self) -> int:
        """The number of ranks."""
        return len(self.hbm)

    @property
    def per_machine(self) -> Ints:
        """The number of ranks on each machine."""
        return np.bincount(self.machine, minlength=len(self.pool))


@dataclass(frozen=True, slots=True, eq=False)
class Loads:
    """Time and bytes placed so far on ranks and machines. Methods return changed copies."""

    cost: Ints
    hbm: Ints
    ddr: Ints

    @staticmethod
    def none(ranks: RankLimits) -> Loads:
        """Returns the loads of no tables."""
        zero = np.zeros(ranks.count, np.int64)
        return Loads(zero, zero.copy(), np.zeros(len(ranks.pool), np.int64))

    def fits(self, ranks: RankLimits) -> bool:
        """Returns whether every device and machine can hold its load."""
        return bool((self.hbm <= ranks.hbm).all() and (self.ddr <= ranks.pool).all())

    def plus(self, ranks: RankLimits, option: PlacementOption, rank: int | None) -> Loads:
        """Returns the loads with one more table, on `rank` or, if None, on all ranks."""
        cost, hbm, ddr = self.cost.copy(), self.hbm.copy(), self.ddr.copy()
        if rank is None:
            cost += ns(option)
            hbm += option.hbm
            ddr += option.ddr * ranks.per_machine
        else:
            cost[rank] += ns(option)
            hbm[rank] += option.hbm
            ddr[ranks.machine[rank]] += option.ddr
        return Loads(cost, hbm, ddr)


def ns(option: PlacementOption) -> int:
    """Returns the time of an option in whole nanoseconds."""
    return round(option.ms * NS_PER_MS)


def make_ranks(
    hbm_by_rank: Sequence[int], ddr_by_machine: Sequence[int], local_world: int
) -> RankLimits:
    """Returns the limits of the ranks. Machine m has ranks from m * local_world on."""
    machine = np.arange(len(hbm_by_rank)) // local_world
    return RankLimits(np.array(hbm_by_rank, np.int64), machine, np.array(ddr_by_machine, np.int64))


def does_not_fit(why: str) -> PlanError:
    """Returns the error that no placement fits, with the reason."""
    return PlanError(f"No placement fits: {why}. Give more memory, or allow more ways.")


def shares(ranks: RankLimits, options: Sequence[PlacementOption], scale: int) -> Floats:
    """Returns the largest share of time, HBM or host memory that each option takes of a rank."""
    time = np.array([ns(o) for o in options], np.float64) / max(1, scale)
    hbm = np.array([o.hbm for o in options], np.float64) / max(1, int(ranks.hbm.min()))
    ddr = np.array([o.ddr for o in options], np.float64) / max(1, int(ranks.pool.min(initial=1)))
    return np.maximum(time, np.maximum(hbm, ddr))
