"""How likely each key of a table is, in a few hundred numbers whatever its rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ...core import checks
from ...core.errors import ConfigError
from ..problem.key_stats import KeyStats

EXPONENT = 1.05
"""Of Zipf's law for a table whose keys were not sampled; reports also show 0.8 and 1.3."""
_SINGLE = 32  # ranks that stand for themselves
_WIDTH = 1.2  # of the ranks of all other bins; the error of U and hit rates is below 0.001
_CLOSE = 0.02  # counts so near to one another are one
_COMMON = 10  # times seen: from here on a key's own count is a fair guess of its share
_STEEPEST = 4.0
_KEPT = 4096  # models: tables of a plan

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class KeyModel:
    """`keys[i]` keys have the chance `chance[i]` each, the most frequent first; they sum to 1.

    >>> model = zipf(10**9, 1.05)
    >>> len(model.chance) < 400, round(float(model.keys.sum())), round(model.mass(), 9)
    (True, 1000000000, 1.0)
    """

    chance: Floats
    keys: Floats

    def mass(self) -> float:
        """Of all keys; 1 but for rounding."""
        return float(self.chance @ self.keys)

    def unseen(self, sampled: int) -> float:
        """The chance that an id is none of those that a sample of this size has."""
        missed = np.exp(sampled * np.log1p(-_below_one(self.chance)))
        return float(missed @ (self.chance * self.keys))


@lru_cache(maxsize=_KEPT)
def zipf(rows: int, exponent: float = EXPONENT) -> KeyModel:
    """Zipf's law: the chance of the key of rank r is proportional to r to the power -exponent."""
    checks.whole("zipf", "rows", rows, least=1)
    checks.setting("zipf", "exponent", exponent, least=0, below=_STEEPEST + 1)
    weight, keys = _power_bins(0, rows, exponent)
    return KeyModel(weight / (weight @ keys), keys)


@lru_cache(maxsize=_KEPT)
def from_stats(stats: KeyStats, rows: int) -> KeyModel:
    """The model that a sample speaks for, of `rows` keys or as many as were seen.

    Keys seen often have the share they were seen with. For all others, seen or not, a count says
    little: they share what mass is left as a power of their rank, as steep as makes a sample of
    this size see as many distinct keys as were seen.
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
    """Falling counts, those within a few percent of one another as their mean."""
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
    """Keys of the ranks after `first` with that mass; more skew lets a sample see fewer of them."""
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
    """Ranks first+1..last in bins: the mean of rank to the -exponent in each, and its ranks."""
    edges = _edges(first, last)
    low, high = edges[:-1], edges[1:]
    width = high - low
    # Between half ranks the integral of a power is its sum, but for the first few ranks.
    a, b = low + 0.5, high + 0.5
    if abs(exponent - 1) < 1e-9:
        total = np.log(b / a)
    else:
        total = (b ** (1 - exponent) - a ** (1 - exponent)) / (1 - exponent)
    return np.where(width == 1, high**-exponent, total / width), width


def _edges(first: int, last: int) -> Floats:
    """Edges of bins of whole ranks: single ones first, then each a share wider."""
    singles = np.arange(first, min(last, first + _SINGLE) + 1, dtype=np.float64)
    if last <= first + _SINGLE:
        return singles
    start = singles[-1]
    steps = int(np.ceil(np.log(last / start) / np.log(_WIDTH)))
    grown = np.floor(start * (last / start) ** (np.arange(1, steps + 1) / max(1, steps)))
    grown[-1] = last
    return np.unique(np.concatenate([singles, grown]))
