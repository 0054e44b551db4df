"""How often ids repeat in a batch: popularities that follow the profile of production batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..core import checks
from ..core.errors import InputError

Numbers = NDArray[np.float64]
Counts = NDArray[np.int64]

# Shares of a batch's accesses that go to ids seen 1, 2, 3-4, 5-8, ... 16385-32768 and more times in
# it: published locality statistics of 856 tables, batch 65,536, whose distinct ids are seen 6.9
# times in the mean.
PROFILE = (
    *(0.069, 0.044, 0.068, 0.101, 0.121, 0.104, 0.073, 0.058, 0.052),
    *(0.050, 0.049, 0.048, 0.048, 0.043, 0.031, 0.023, 0.019),
)
_HOT_SIGHTINGS = 16.0  # ids of this rate and more are placed one by one
_RARE = 1e-9  # the rate of ids that are seen once in a batch, if at all
_SELDOM_RATE = 0.05  # at most, of those in a table of few rows: hardly one of them is seen twice


@dataclass(frozen=True, slots=True)
class Popularity:
    """Groups of ids: one of `sizes[g]` ids gets the share `masses[g]` of the draws, evenly.

    >>> common = Popularity(np.array([0.5, 0.5]), np.array([1, 1000]))
    >>> drawn = common.draw(np.random.default_rng(0), 10_000)
    >>> common.ids, 4_900 < int((drawn == 0).sum()) < 5_100
    (1001, True)
    """

    masses: Numbers
    sizes: Counts

    @property
    def ids(self) -> int:
        """How many there are: draws are numbers from 0 to this."""
        return int(self.sizes.sum())

    def draw(self, random: np.random.Generator, n: int) -> Counts:
        """Numbers of n ids."""
        borders = np.cumsum(self.masses)
        group = np.searchsorted(borders, random.random(n) * borders[-1], side="right")
        group = np.minimum(group, len(borders) - 1)
        firsts = np.cumsum(self.sizes) - self.sizes
        return firsts[group] + (random.random(n) * self.sizes[group]).astype(np.int64)


def power_law(ids: int, *, flat: int = 10, exponent: float = 0.7) -> Popularity:
    """Each id less popular than the one before: share (rank + flat) ** -exponent.

    >>> power_law(200).ids
    200
    """
    masses = (np.arange(ids) + float(flat)) ** -exponent
    return Popularity(masses / masses.sum(), np.ones(ids, np.int64))


def sightings_profile(ids: Counts, most: int) -> tuple[Numbers, float]:
    """Shares of accesses by how often the id is seen, and the mean sightings of distinct ids.

    Buckets are those of `PROFILE`; the last one that `most` sightings fall into takes all above.

    >>> shares, mean = sightings_profile(np.array([7, 7, 8]), most=2)
    >>> shares.round(2).tolist(), mean
    ([0.33, 0.67], 1.5)
    """
    _, counts = np.unique(ids, return_counts=True)
    shares = np.bincount(_buckets(counts, most), counts, _bucket_count(most)) / len(ids)
    return shares, len(ids) / len(counts)


def folded_profile(most: int) -> Numbers:
    """`PROFILE` for ids that cannot be seen more than `most` times: shares above go to the last.

    >>> folded_profile(2).round(3).tolist()
    [0.069, 0.931]
    """
    shares = np.array(PROFILE) / sum(PROFILE)
    buckets = _bucket_count(most)
    return np.append(shares[: buckets - 1], shares[buckets - 1 :].sum())


def _bucket_count(most: int) -> int:
    return min(int(np.ceil(np.log2(most))) + 1, len(PROFILE))


def _buckets(counts: NDArray[np.integer], most: int) -> Counts:
    return np.minimum(np.ceil(np.log2(counts)).astype(np.int64), _bucket_count(most) - 1)


def _fit(most: int) -> tuple[Numbers, Numbers]:
    """Rates (sightings expected in a batch) and the share of accesses that ids of each rate get.

    An access to an id of rate r meets one that is seen 1 + Poisson(r) times; the shares of the
    mixture are fitted to the profile by expectation-maximization, which keeps them positive.
    """
    rates = np.append(_RARE, 2.0 ** np.arange(-1, np.log2(most), 0.5))
    counts = np.arange(1, int(1.3 * most) + 200)
    log_factorial = np.append(0.0, np.cumsum(np.log(counts[:-1])))
    buckets = _buckets(counts, most)
    chance = np.empty((_bucket_count(most), len(rates)))
    for j, rate in enumerate(rates):
        poisson = np.exp((counts - 1) * np.log(rate) - rate - log_factorial)
        chance[:, j] = np.bincount(buckets, poisson, len(chance)) / poisson.sum()
    target, shares = folded_profile(most), np.full(len(rates), 1 / len(rates))
    for _ in range(3000):
        shares = shares * (chance.T @ (target / (chance @ shares)))
    return rates, shares


def fitted_popularities(tables: int, rows: int, draws: int) -> list[Popularity]:
    """One popularity a table, so that `draws` from each make a batch that follows `PROFILE`.

    Hot ids take most of the draws of some tables, as features of few values do in practice; the
    profile is that of the whole batch. Every table has `rows` ids, most of them seen seldom.

    >>> [table.ids for table in fitted_popularities(tables=2, rows=100_000, draws=512)]
    [100000, 100000]
    """
    tables = checks.count("tables", tables, least=1)
    draws = checks.count("draws", draws, least=16)
    rates, shares = _fit(draws)
    masses = shares * (tables * draws)  # accesses expected in a batch
    hot, masses = _place_hot(rates, masses, np.full(tables, float(draws)))
    room = draws - np.array([sum(placed) for placed in hot])
    common = np.flatnonzero((rates < _HOT_SIGHTINGS) & (rates > _RARE))
    parts = masses[common] * (room / room.sum())[:, None]
    sizes = np.floor(parts / rates[common] + 0.5).astype(np.int64)
    seldom = np.maximum(room - (sizes * rates[common]).sum(1), 0.0)
    others = sizes.sum(1) + [len(placed) for placed in hot]
    least = int((others + np.ceil(seldom / _SELDOM_RATE) + 1).max())
    if rows < least:
        raise InputError(
            f"rows is {rows}; {tables} tables of {draws} draws a batch need at least {least} ids "
            f"each to repeat as the profile says."
        )
    return [
        Popularity(
            np.concatenate([hot[t], sizes[t] * rates[common], seldom[t : t + 1]]) / draws,
            np.concatenate([np.ones(len(hot[t]), np.int64), sizes[t], [rows - others[t]]]),
        )
        for t in range(tables)
    ]


def _place_hot(rates: Numbers, masses: Numbers, room: Numbers) -> tuple[list[list[float]], Numbers]:
    """The rates of the hot ids of each table, and masses with what no whole id could take.

    Hottest first, each into the table with most room; what is too little for one id of a rate
    is left to the next lower rate.
    """
    placed: list[list[float]] = [[] for _ in room]
    masses, room = masses.copy(), room.copy()
    for j in range(len(rates) - 1, -1, -1):
        if rates[j] < _HOT_SIGHTINGS:
            break
        while masses[j] >= rates[j] and room.max() >= rates[j]:
            table = int(room.argmax())
            placed[table].append(float(rates[j]))
            room[table] -= rates[j]
            masses[j] -= rates[j]
        masses[j - 1] += masses[j]
        masses[j] = 0.0
    return placed, masses
