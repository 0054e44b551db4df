"""How many distinct keys a step touches, and what share of them a part of the table holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...core import checks
from ...core.errors import InputError
from ..problem.variant import FACTORS
from .key_model import KeyModel

Floats = NDArray[np.float64]
_ROUNDS = 200  # a bisection in double precision ends long before
_GRID = 32  # points that Newton's method starts from
_EXACT = 1e-7  # relative error of the keys in the cache


@dataclass(frozen=True, slots=True, eq=False)
class Touched:
    """What steps of one size do to a table: `chance[i]` that one of `keys[i]` keys is in a step.

    `distinct` is the number of keys in a step on average. Equal ids of a step count once.

    >>> from .key_model import zipf
    >>> found = touched(zipf(200_000, 1.05), 65_536)
    >>> round(found.distinct, -3)
    17000.0
    """

    chance: Floats
    keys: Floats
    distinct: float
    _recency: dict[float, float] = field(default_factory=dict)

    @property
    def rows(self) -> float:
        """Keys that there are."""
        return float(self.keys.sum())

    def thrashes(self, cached_rows: float) -> bool:
        """A cache of so many rows is smaller than what one step needs."""
        return cached_rows < self.distinct

    def split_hit(self, share: float) -> float:
        """Rows are split by a hash, this share of them in the fast tier."""
        return _share(share)

    def frequency_hit(self, cached_rows: float) -> float:
        """The fast tier holds the hottest rows."""
        before = np.cumsum(self.keys) - self.keys
        held = np.clip(_rows(cached_rows) - before, 0, self.keys)
        return float(held @ self.chance) / self.distinct

    def recency_hit(self, cached_rows: float) -> float:
        """The fast tier holds the rows used last: by the characteristic time of such a cache."""
        rows = float(_rows(cached_rows))
        if rows not in self._recency:
            # Planners ask for all of these one after the other; together they cost as much as one.
            usual = [float(share) * self.rows for share in FACTORS] if not self._recency else []
            wanted = np.array([rows, *usual])
            self._recency.update(zip(wanted.tolist(), self._recency_hits(wanted), strict=True))
        return self._recency[rows]

    def _recency_hits(self, rows: Floats) -> list[float]:
        stays = -np.expm1(np.outer(characteristic_time(self.chance, self.keys, rows), self._log()))
        return np.clip(stays @ (self.chance * self.keys) / self.distinct, 0, 1).tolist()

    def _log(self) -> Floats:
        return _log_absent(self.chance)


def touched(model: KeyModel, ids: float) -> Touched:
    """What a step of so many `ids`, equal ones among them, touches of the keys of a model."""
    checks.setting("touched", "ids", ids, above=0)
    chance = -np.expm1(ids * np.log1p(-np.minimum(model.chance, 1 - 1e-15)))
    return Touched(chance, model.keys, float(chance @ model.keys))


def characteristic_time(chance: Floats, keys: Floats, rows: Floats | Sequence[float]) -> Floats:
    """Steps T after which an unused key leaves a cache of so many rows that keeps the latest.

    T solves sum(keys * (1 - (1 - chance)^T)) = rows for each of `rows`; the left side grows with T,
    so Newton's steps are kept between bounds that close in. A cache of all keys never drops one.

    >>> characteristic_time(np.array([0.5]), np.array([8.0]), [4.0, 6.0, 8.0]).round(6)
    array([ 1.,  2., inf])
    """
    wanted = np.atleast_1d(np.asarray(rows, np.float64))
    log = _log_absent(chance)
    found = np.full(len(wanted), np.inf)
    open_ = wanted < float(keys.sum()) * (1 - 1e-12)
    if open_.any():
        found[open_] = np.exp(_solved(log, keys, wanted[open_]))
    return found


def _solved(log: Floats, keys: Floats, wanted: Floats) -> Floats:
    """ln T of each: Newton's method in ln T and ln rows, bisection where it leaves the bounds."""
    least = math.log(float(wanted.min()) / -float(log @ keys))
    most = math.log(-50 / float(log.max()))
    grid = np.linspace(least, max(least, most), _GRID)  # held <= T * -log: the root is in there
    coarse = _held(np.exp(grid), log, keys)
    now = np.interp(wanted, coarse, grid)
    low, high = np.full_like(now, least), np.full_like(now, grid[-1])
    for _ in range(_ROUNDS):
        time = np.exp(now)
        absent = np.exp(np.outer(time, log))
        held = (1 - absent) @ keys
        if (np.abs(held - wanted) <= _EXACT * wanted).all() or (high - low < 1e-13).all():
            break
        low, high = np.where(held < wanted, now, low), np.where(held > wanted, now, high)
        slope = time * (absent @ (-log * keys)) / held
        step = now + np.log(wanted / held) / np.maximum(slope, 1e-300)
        now = np.where((step > low) & (step < high), step, (low + high) / 2)
    return now


def _held(time: Floats, log: Floats, keys: Floats) -> Floats:
    """Rows in a cache whose keys leave after `time` steps without use."""
    return -np.expm1(np.outer(time, log)) @ keys


def _log_absent(chance: Floats) -> Floats:
    """ln of the chance that a step does not have the key; below 0 also for the rarest ones."""
    return np.minimum(np.log1p(-np.minimum(chance, 1 - 1e-15)), -1e-300)


def _rows(cached_rows: float) -> float:
    if not 0 < cached_rows < float("inf"):
        raise InputError(f"cached_rows is {cached_rows!r}; give a number of rows above 0.")
    return cached_rows


def _share(share: float) -> float:
    if not 0 <= share <= 1:
        raise InputError(f"share is {share!r}; give one from 0 to 1.")
    return float(share)
