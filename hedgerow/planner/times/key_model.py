"""The probability of each key of a table, and the resulting distinct keys and hit rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ...core import checks
from ...core.errors import ConfigError, InputError
from ..problem.key_stats import KeyStats
from ..problem.options import FACTORS

EXPONENT = 1.05
"""Zipf exponent of a table without sampled keys. Reports also show 0.8 and 1.3."""
_SINGLE = 32  # ranks with a bin of their own
_WIDTH = 1.2  # growth of all other bins; errors of distinct keys and hit rates stay below 0.001
_CLOSE = 0.02  # counts closer than this are merged
_COMMON = 10  # from this count on, a key's own count estimates its share well
_STEEPEST = 4.0
_KEPT = 4096  # models kept for the tables of a plan

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class KeyModel:
    """A distribution of keys: `keys[i]` keys have the probability `chance[i]` each.

    The most frequent keys come first. The probabilities sum to 1.

    >>> model = zipf(10**9, 1.05)
    >>> len(model.chance) < 400, round(float(model.keys.sum())), round(model.mass(), 9)
    (True, 1000000000, 1.0)
    """

    chance: Floats
    keys: Floats

    def mass(self) -> float:
        """Returns the total probability; 1 up to rounding."""
        return float(self.chance @ self.keys)

    def unseen(self, sampled: int) -> float:
        """Returns the probability that an id is not in a sample of this size."""
        missed = np.exp(sampled * np.log1p(-_below_one(self.chance)))
        return float(missed @ (self.chance * self.keys))


@lru_cache(maxsize=_KEPT)
def zipf(rows: int, exponent: float = EXPONENT) -> KeyModel:
    """Returns Zipf's law: the key of rank r has a probability proportional to r ** -exponent."""
    checks.whole("zipf", "rows", rows, least=1)
    checks.setting("zipf", "exponent", exponent, least=0, below=_STEEPEST + 1)
    weight, keys = _power_bins(0, rows, exponent)
    return KeyModel(weight / (weight @ keys), keys)


@lru_cache(maxsize=_KEPT)
def from_stats(stats: KeyStats, rows: int) -> KeyModel:
    """Returns the model that fits a sample.

    Frequent keys have the share that they have in the sample. For all other keys, sampled or not, a
    single count says little. They share the remaining probability as a power of their rank. The
    exponent is chosen so that a sample of this size has as many distinct keys as were seen.

    With rare keys in the sample, the model has `rows` keys, or all sampled keys if these are more.
    Without them it has only the sampled keys.
    """
    if not isinstance(stats, KeyStats):
        raise ConfigError(f"stats is {stats!r}; give KeyStats, as `key_stats` makes them.")
    checks.whole("from_stats", "rows", rows, least=1)
    counts = stats.counts()
    common = [pair for pair in counts if pair[0] >= _COMMON]
    rare_seen = sum(keys for times, keys in counts if times < _COMMON)
    rare_mass = sum(times * keys for times, keys in counts if times < _COMMON) / stats.sampled
    chance, keys = _merged(common, stats.sampled)
    ranks = stats.distinct - rare_seen
    if rare_seen:
        last = max(rows, stats.distinct)
        tail = _tail(ranks, last, rare_mass, stats.sampled, rare_seen)
        chance, keys = np.append(chance, tail[0]), np.append(keys, tail[1])
    order = np.argsort(-chance, kind="stable")
    chance, keys = chance[order], keys[order]
    return KeyModel(chance / (chance @ keys), keys)


def _merged(counts: list[tuple[int, int]], sampled: int) -> tuple[Floats, Floats]:
    """Returns merged counts: those within a few percent of each other become their mean."""
    chance: list[float] = []
    keys: list[float] = []
    start = 0
    while start < len(counts):
        stop, least = start, counts[start][0] * (1 - _CLOSE)
        while stop < len(counts) and counts[stop][0] >= least:
            stop += 1
        number = sum(k for _, k in counts[start:stop])
        chance.append(sum(times * k for times, k in counts[start:stop]) / number / sampled)
        keys.append(number)
        start = stop
    return np.array(chance, np.float64), np.array(keys, np.float64)


def _tail(first: int, last: int, mass: float, sampled: int, distinct: int) -> tuple[Floats, Floats]:
    """Returns the keys of the ranks after `first`, with the given total probability.

    A larger exponent lets a sample see fewer distinct keys.
    """
    low, high = 0.0, _STEEPEST
    if _seen(*_scaled(first, last, low, mass), sampled) <= distinct:
        return _scaled(first, last, low, mass)
    for _ in range(40):
        middle = (low + high) / 2
        if _seen(*_scaled(first, last, middle, mass), sampled) > distinct:
            low = middle
        else:
            high = middle
    return _scaled(first, last, high, mass)


def _scaled(first: int, last: int, exponent: float, mass: float) -> tuple[Floats, Floats]:
    weight, keys = _power_bins(first, last, exponent)
    return weight * (mass / (weight @ keys)), keys


def _seen(chance: Floats, keys: Floats, sampled: int) -> float:
    return float(-np.expm1(sampled * np.log1p(-_below_one(chance))) @ keys)


def _below_one(chance: Floats) -> Floats:
    return np.minimum(chance, 1 - 1e-12)


def _power_bins(first: int, last: int, exponent: float) -> tuple[Floats, Floats]:
    """Returns bins of ranks first+1 to last: the mean of rank ** -exponent, and their ranks."""
    edges = _edges(first, last)
    low, high = edges[:-1], edges[1:]
    width = high - low
    # Between half ranks the integral of a power equals its sum, except for the first few ranks.
    a, b = low + 0.5, high + 0.5
    if abs(exponent - 1) < 1e-9:
        total = np.log(b / a)
    else:
        total = (b ** (1 - exponent) - a ** (1 - exponent)) / (1 - exponent)
    return np.where(width == 1, high**-exponent, total / width), width


def _edges(first: int, last: int) -> Floats:
    """Returns the edges of bins of whole ranks: single ranks first, then growing bins."""
    singles = np.arange(first, min(last, first + _SINGLE) + 1, dtype=np.float64)
    if last <= first + _SINGLE:
        return singles
    start = singles[-1]
    steps = int(np.ceil(np.log(last / start) / np.log(_WIDTH)))
    grown = np.floor(start * (last / start) ** (np.arange(1, steps + 1) / max(1, steps)))
    grown[-1] = last
    return np.unique(np.concatenate([singles, grown]))


_ROUNDS = 200  # bisection in double precision ends much earlier
_GRID = 32  # points where Newton's method starts
_EXACT = 1e-7  # relative error of the number of cached keys


@dataclass(frozen=True, slots=True, eq=False)
class DistinctKeys:
    """The use of a table in a step: `chance[i]` is the probability of each of `keys[i]` keys.

    `distinct` is the mean number of distinct keys per step.

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
        """The number of keys of the table."""
        return float(self.keys.sum())

    def thrashes(self, cached_rows: float) -> bool:
        """Returns whether a cache of `cached_rows` rows is smaller than one step needs."""
        return cached_rows < self.distinct

    def split_hit(self, share: float) -> float:
        """Returns the hit rate if a hash selects this share of the rows for the fast tier."""
        return _share(share)

    def frequency_hit(self, cached_rows: float) -> float:
        """Returns the hit rate if the fast tier holds the most frequent rows."""
        before = np.cumsum(self.keys) - self.keys
        held = np.clip(_rows(cached_rows) - before, 0, self.keys)
        return float(held @ self.chance) / self.distinct

    def recency_hit(self, cached_rows: float) -> float:
        """Returns the hit rate if the fast tier holds the most recently used rows.

        It uses the characteristic time of such a cache.
        """
        rows = float(_rows(cached_rows))
        if rows not in self._recency:
            # Planners ask for all of these. Computing them together costs as much as one.
            usual = [float(share) * self.rows for share in FACTORS] if not self._recency else []
            wanted = np.array([rows, *usual])
            self._recency.update(zip(wanted.tolist(), self._recency_hits(wanted), strict=True))
        return self._recency[rows]

    def _recency_hits(self, rows: Floats) -> list[float]:
        stays = -np.expm1(np.outer(characteristic_time(self.chance, self.keys, rows), self._log()))
        return np.clip(stays @ (self.chance * self.keys) / self.distinct, 0, 1).tolist()

    def _log(self) -> Floats:
        return _log_absent(self.chance)


def touched(model: KeyModel, ids: float) -> DistinctKeys:
    """Returns how a step of `ids` ids, including repetitions, uses the keys of a model."""
    checks.setting("touched", "ids", ids, above=0)
    chance = -np.expm1(ids * np.log1p(-np.minimum(model.chance, 1 - 1e-15)))
    return DistinctKeys(chance, model.keys, float(chance @ model.keys))


def characteristic_time(chance: Floats, keys: Floats, rows: Floats | Sequence[float]) -> Floats:
    """Returns after how many steps T an unused key leaves a least-recently-used cache.

    T solves sum(keys * (1 - (1 - chance)^T)) = rows for each of `rows`. The left side grows with T,
    so Newton's method is kept between bounds that close in. A cache of all keys never evicts one.

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
    """Returns ln T of each, by Newton's method with bisection where it leaves the bounds."""
    least = math.log(float(wanted.min()) / -float(log @ keys))
    most = math.log(-50 / float(log.max()))
    grid = np.linspace(least, max(least, most), _GRID)  # held <= T * -log, so the root is inside
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
    """Returns the rows in a cache whose keys leave after `time` steps without use."""
    return -np.expm1(np.outer(time, log)) @ keys


def _log_absent(chance: Floats) -> Floats:
    """Returns ln of the probability that a key is not in a step, always below 0."""
    return np.minimum(np.log1p(-np.minimum(chance, 1 - 1e-15)), -1e-300)


def _rows(cached_rows: float) -> float:
    if not 0 < cached_rows < float("inf"):
        raise InputError(f"cached_rows is {cached_rows!r}; give a number of rows above 0.")
    return cached_rows


def _share(share: float) -> float:
    if not 0 <= share <= 1:
        raise InputError(f"share is {share!r}; give one from 0 to 1.")
    return float(share)
