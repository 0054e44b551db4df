"""Placement as arrays: options that lie on all ranks or on one, ranks, and pools of machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...core import checks
from ..problem.options import PlanError
from .choice_problem import NS_PER_MS, Floats, Ints

KINDS = ("row", "table", "copy")
WHOLE_SHARE = 0.05
"""Of a card: whole tables above this make the bound loose, and rows are split as well."""


@dataclass(frozen=True, slots=True)
class PlacementOption:
    """One way to keep a table: "row" and "copy" take bytes and time on every rank, "table" on one.

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
        """Whether all ranks have a part of it."""
        return self.kind != "table"


@dataclass(frozen=True, slots=True)
class PlacementTable:
    """A table and the ways to place it, in the order that breaks the last ties."""

    name: str
    options: tuple[PlacementOption, ...]


def small_enough(table: PlacementTable, hbm: int, share: float = WHOLE_SHARE) -> PlacementTable:
    """Without whole-table options that take more than a share of a card, if others are left."""
    kept = tuple(o for o in table.options if o.everywhere or o.hbm <= share * hbm)
    return PlacementTable(table.name, kept) if kept else table


@dataclass(frozen=True, slots=True, eq=False)
class RankLimits:
    """Bytes of each rank's card, which machine it is on, and each machine's pool."""

    hbm: Ints
    machine: Ints
    pool: Ints

    @property
    def count(self) -> int:
        """Ranks."""
        return len(self.hbm)

    @property
    def per_machine(self) -> Ints:
        """Ranks of each machine."""
        return np.bincount(self.machine, minlength=len(self.pool))


@dataclass(frozen=True, slots=True, eq=False)
class Loads:
    """What lies on ranks and machines so far; a copy is changed, never shared."""

    cost: Ints
    hbm: Ints
    ddr: Ints

    @staticmethod
    def none(ranks: RankLimits) -> Loads:
        """Nothing placed."""
        zero = np.zeros(ranks.count, np.int64)
        return Loads(zero, zero.copy(), np.zeros(len(ranks.pool), np.int64))

    def fits(self, ranks: RankLimits) -> bool:
        """Every card and every pool holds what lies on it."""
        return bool((self.hbm <= ranks.hbm).all() and (self.ddr <= ranks.pool).all())

    def plus(self, ranks: RankLimits, option: PlacementOption, rank: int | None) -> Loads:
        """With one more table; rank None: on all of them."""
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
    """Its time in whole nanoseconds."""
    return round(option.ms * NS_PER_MS)


def make_ranks(
    hbm_by_rank: Sequence[int], ddr_by_machine: Sequence[int], local_world: int
) -> RankLimits:
    """Machine m has ranks m * local_world and on."""
    machine = np.arange(len(hbm_by_rank)) // local_world
    return RankLimits(np.array(hbm_by_rank, np.int64), machine, np.array(ddr_by_machine, np.int64))


def does_not_fit(why: str) -> PlanError:
    """No placement, and why."""
    return PlanError(f"No placement fits: {why}. Give more memory, or allow more ways.")


def shares(ranks: RankLimits, options: Sequence[PlacementOption], scale: int) -> Floats:
    """The largest share of time, card or pool that each option takes of a rank."""
    time = np.array([ns(o) for o in options], np.float64) / max(1, scale)
    hbm = np.array([o.hbm for o in options], np.float64) / max(1, int(ranks.hbm.min()))
    ddr = np.array([o.ddr for o in options], np.float64) / max(1, int(ranks.pool.min(initial=1)))
    return np.maximum(time, np.maximum(hbm, ddr))
