"""Synthetic clicks: batches of 64-bit ids with a known ground truth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..core import checks
from ..core.errors import ConfigError, InputError
from ..core.hashing import id64, mix64
from ..core.id_batch import IdBatch
from ..core.ids import Ragged
from .source import Batch, BatchSource, check_state

Numbers = NDArray[np.float64]
DENSE_COLUMNS = 4
_FACTORS = 3  # with the bias, four numbers of 16 bits: one hash per id
_OF_DENSE = np.array([0.5, -0.4, 0.3, -0.2])
_OF_BIAS, _OF_PAIRS, _INTERCEPT = 0.7, 3.0, -0.5


@dataclass(frozen=True, slots=True)
class Best:
    """The expected metrics of a model that knows the true chances; no model is better on average.

    >>> Best.of(np.array([0.5, 0.5]))
    Best(auc=0.5, log_loss=0.6931471805599453, click_rate=0.5)
    """

    auc: float
    log_loss: float
    click_rate: float

    @staticmethod
    def of(chances: Numbers) -> Best:
        """Returns the metrics expected over the labels, given the chance of each sample."""
        p = np.sort(chances)
        q = 1 - p
        with np.errstate(divide="ignore", invalid="ignore"):
            entropy = -np.nan_to_num(p * np.log(p)) - np.nan_to_num(q * np.log(q))
        below = np.cumsum(q) - q  # expected negatives below each sample
        _, first, same = np.unique(p, return_index=True, return_counts=True)
        tied = np.repeat(np.add.reduceat(q, first), same)
        wins = (p * (np.repeat(below[first], same) + tied / 2)).sum()
        auc = wins / (p.sum() * q.sum())
        return Best(float(auc), float(entropy.mean()), float(p.mean()))


@dataclass(frozen=True, slots=True)
class ClickTruth:
    """The chance of a click, from dense columns, a bias per id, and the products of feature pairs.

    Every id has a bias and a vector of 3 numbers, from a hash of (seed, table, id). A feature is
    the sum over its ids. The logit is that of a factorization machine.
    """

    seed: int
    tables: Mapping[str, str]  # feature -> table
    scales: Mapping[str, float]  # feature -> factor of its sum

    def chances(self, dense: Numbers, ids: Mapping[str, Ragged]) -> Numbers:
        """Returns the chance of each sample."""
        samples = len(dense)
        total, squares, bias = np.zeros((samples, _FACTORS)), np.zeros(samples), np.zeros(samples)
        for name, column in ids.items():
            pooled = self._pooled(name, column)
            bias += pooled[:, 0]
            total += pooled[:, 1:]
            squares += (pooled[:, 1:] ** 2).sum(1)
        features = len(ids)
        pairs = max(1, features * (features - 1) // 2)
        products = ((total**2).sum(1) - squares) / 2 / np.sqrt(pairs * _FACTORS)
        logit = _INTERCEPT + dense @ _OF_DENSE + _OF_BIAS * bias / np.sqrt(features)
        return 1 / (1 + np.exp(-(logit + _OF_PAIRS * products)))

    def _pooled(self, feature: str, column: Ragged) -> Numbers:
        """Returns bias and vector, summed over the ids of each sample."""
        key = id64(self.tables[feature], field=f"click truth {self.seed}")
        words = mix64(column.values ^ key).numpy().view(np.uint16).reshape(-1, 1 + _FACTORS)
        even = (words - 32767.5) * (np.sqrt(3) / 32768)  # mean 0, variance 1
        rows = np.repeat(np.arange(column.rows), column.lengths().numpy())
        sums = [np.bincount(rows, numbers, column.rows) for numbers in even.T]
        return np.stack(sums, axis=1, dtype=np.float64) * self.scales[feature]


FloatArray = NDArray[np.float64]
Counts = NDArray[np.int64]

# Shares of a batch's accesses that go to ids seen 1, 2, 3-4, 5-8, ... 16385-32768 and more times in
# the batch. Source: published locality statistics of 856 tables with batch size 65,536, in which a
# distinct id is seen 6.9 times on average.
PROFILE = (
    *(0.069, 0.044, 0.068, 0.101, 0.121, 0.104, 0.073, 0.058, 0.052),
    *(0.050, 0.049, 0.048, 0.048, 0.043, 0.031, 0.023, 0.019),
)
_HOT_SIGHTINGS = 16.0  # ids of at least this rate are assigned to tables one by one
_RARE = 1e-9  # the rate of ids that are seen at most once in a batch
_SELDOM_RATE = 0.05  # highest rate of rare ids in a small table: very few are seen twice


@dataclass(frozen=True, slots=True)
class Popularity:
    """Groups of ids. Group g has `sizes[g]` ids, which share `masses[g]` of the draws evenly.

    >>> common = Popularity(np.array([0.5, 0.5]), np.array([1, 1000]))
    >>> drawn = common.draw(np.random.default_rng(0), 10_000)
    >>> common.ids, 4_900 < int((drawn == 0).sum()) < 5_100
    (1001, True)
    """

    masses: FloatArray
    sizes: Counts

    @property
    def ids(self) -> int:
        """The number of ids. Draws are numbers from 0 to `ids` - 1."""
        return int(self.sizes.sum())

    def draw(self, random: np.random.Generator, n: int) -> Counts:
        """Draws `n` id numbers."""
        borders = np.cumsum(self.masses)
        group = np.searchsorted(borders, random.random(n) * borders[-1], side="right")
        group = np.minimum(group, len(borders) - 1)
        firsts = np.cumsum(self.sizes) - self.sizes
        return firsts[group] + (random.random(n) * self.sizes[group]).astype(np.int64)


def power_law(ids: int, *, flat: int = 10, exponent: float = 0.7) -> Popularity:
    """Returns a popularity whose shares are proportional to (rank + flat) ** -exponent.

    >>> power_law(200).ids
    200
    """
    masses = (np.arange(ids) + float(flat)) ** -exponent
    return Popularity(masses / masses.sum(), np.ones(ids, np.int64))


def sightings_profile(ids: Counts, most: int) -> tuple[FloatArray, float]:
    """Returns the shares of accesses by how often an id is seen, and the mean sightings of an id.

    The buckets are those of `PROFILE`. The bucket that contains `most` sightings takes all above.

    >>> shares, mean = sightings_profile(np.array([7, 7, 8]), most=2)
    >>> shares.round(2).tolist(), mean
    ([0.33, 0.67], 1.5)
    """
    _, counts = np.unique(ids, return_counts=True)
    shares = np.bincount(_buckets(counts, most), counts, _bucket_count(most)) / len(ids)
    return shares, len(ids) / len(counts)


def folded_profile(most: int) -> FloatArray:
    """Returns `PROFILE` for ids seen at most `most` times; the last bucket takes all above.

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


def _fit(most: int) -> tuple[FloatArray, FloatArray]:
    """Returns rates (expected sightings in a batch) and the share of accesses of each rate.

    An access to an id of rate r is an access to an id that is seen 1 + Poisson(r) times. The shares
    of this mixture are fitted to the profile by expectation-maximization, which keeps them
    positive.
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
    """Returns one popularity per table, so that `draws` from each table follow `PROFILE` together.

    Hot ids take most of the draws of some tables, as features with few values do in practice. The
    profile is that of the whole batch. Every table has `rows` ids, most of them rarely seen.

    >>> [table.ids for table in fitted_popularities(tables=2, rows=100_000, draws=512)]
    [100000, 100000]
    """
    tables = checks.count("tables", tables, least=1)
    draws = checks.count("draws", draws, least=16)
    rates, shares = _fit(draws)
    masses = shares * (tables * draws)  # expected accesses in a batch
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
            f"rows is {rows}; {tables} tables with {draws} draws per batch need at least {least} "
            f"ids each to follow the profile."
        )
    return [
        Popularity(
            np.concatenate([hot[t], sizes[t] * rates[common], seldom[t : t + 1]]) / draws,
            np.concatenate([np.ones(len(hot[t]), np.int64), sizes[t], [rows - others[t]]]),
        )
        for t in range(tables)
    ]


def _place_hot(
    rates: FloatArray, masses: FloatArray, room: FloatArray
) -> tuple[list[list[float]], FloatArray]:
    """Returns the rates of the hot ids of each table, and the masses that remain.

    The hottest ids come first, each in the table with the most remaining draws. A mass that is too
    small for one id is moved to the next lower rate.
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


_TRAINING, _HELD_OUT, _BEST = 0, 1, 2  # independent streams of samples of the same truth


@dataclass(frozen=True, slots=True)
class ClickFeature:
    """A feature of synthetic clicks: its ids, and how many of them a sample has.

    >>> ClickFeature("history", power_law(200), table="item", least=0, most=8).mean_ids
    4.0
    """

    name: str
    popularity: Popularity
    table: str = ""  # the table of the ids; the feature's own if empty
    least: int = 1
    most: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most or not self.most:
            raise ConfigError(
                f"feature {self.name!r} has {self.least} to {self.most} ids per sample; the least "
                f"must not be above the most, which must be at least 1."
            )

    @property
    def mean_ids(self) -> float:
        """The mean number of ids of a sample."""
        return (self.least + self.most) / 2


class SyntheticClicks(BatchSource):
    """Batches of synthetic clicks. A batch is a pure function of the seed and its number.

    Iteration continues where the last one stopped. After the last batch it starts again with the
    same batches. Not thread-safe.

    >>> source = clicks(batch_size=8, steps=3)
    >>> dense, ids, labels = next(iter(source))
    >>> dense.shape, ids.names, labels.shape
    (torch.Size([8, 4]), ('user', 'item', 'history'), torch.Size([8]))
    >>> source.state_dict()["step"], len(list(source))
    (1, 2)
    """

    def __init__(
        self,
        features: Sequence[ClickFeature],
        batch_size: int,
        steps: int,
        *,
        seed: int = 0,
        stream: int = _TRAINING,
    ) -> None:
        if not features:
            raise InputError("there are no features; give at least one.")
        self._features = tuple(features)
        self._batch_size = checks.count("batch_size", batch_size, least=1)
        self._steps = checks.count("steps", steps, least=1)
        self._seed = checks.count("seed", seed)
        self._stream = stream
        self._step = 0
        tables = {f.name: f.table or f.name for f in features}
        scales = {f.name: f.mean_ids**-0.5 for f in features}
        self._truth = ClickTruth(self._seed, tables, scales)
        self._salts = {name: id64(table, field="synthetic") for name, table in tables.items()}

    def __len__(self) -> int:
        return self._steps

    def _numbered(self) -> Iterator[tuple[int, Callable[[], Batch]]]:
        while self._step < self._steps:
            self._step += 1
            yield self._step - 1, partial(self.batch, self._step - 1)
        self._step = 0

    def batch(self, step: int) -> Batch:
        """Returns batch number `step`, independently of the position."""
        if not 0 <= step < self._steps:
            raise InputError(f"step is {step}; it must lie in 0..{self._steps - 1}.")
        dense, ids, labels, _ = self._samples(self._stream, step, self._batch_size)
        return Batch(
            torch.from_numpy(dense.astype(np.float32)),
            IdBatch.from_dict(ids),
            torch.from_numpy(labels.astype(np.float32)),
        )

    def held_out(self, batch_size: int, steps: int) -> SyntheticClicks:
        """Returns a source of other samples of the same truth, for tests."""
        return SyntheticClicks(self._features, batch_size, steps, seed=self._seed, stream=_HELD_OUT)

    def best(self, samples: int = 200_000) -> Best:
        """Returns the metrics of the true chances on `samples` other samples.

        >>> best = clicks(batch_size=256, steps=300).best(samples=20_000)
        >>> 0.5 < best.auc < 1, 0 < best.log_loss < 0.69
        (True, True)
        """
        count = checks.count("samples", samples, least=2)
        parts = []
        for step, start in enumerate(range(0, count, 4096)):
            parts.append(self._samples(_BEST, step, min(4096, count - start))[3])
        return Best.of(np.concatenate(parts))

    def state_dict(self) -> dict[str, Any]:
        """Returns the position, for `load_state_dict` of a source with equal settings."""
        self._check_position()
        return {"step": self._step, **self._settings()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Moves to a position. The following batches are the same as after `state_dict`."""
        check_state(state, ("step",), self._settings())
        if state["step"] > self._steps:
            raise InputError(
                f"the position is step {state['step']} of {self._steps}; make the source with "
                f"at least that many steps."
            )
        self._step = int(state["step"])

    def _settings(self) -> dict[str, Any]:
        return {
            "seed": self._seed,
            "batch_size": self._batch_size,
            "stream": self._stream,
            "features": [
                [f.name, f.table or f.name, f.popularity.ids, f.least, f.most]
                for f in self._features
            ],
        }

    def _samples(
        self, stream: int, step: int, samples: int
    ) -> tuple[np.ndarray, dict[str, Ragged], np.ndarray, np.ndarray]:
        """Returns dense columns, ids, labels and true chances."""
        random = np.random.default_rng([self._seed, stream, step])
        ids = {f.name: self._ids(f, random, samples) for f in self._features}
        dense = random.standard_normal((samples, DENSE_COLUMNS))
        chances = self._truth.chances(dense, ids)
        return dense, ids, random.random(samples) < chances, chances

    def _ids(self, feature: ClickFeature, random: np.random.Generator, samples: int) -> Ragged:
        if feature.least == feature.most:
            lengths = np.full(samples, feature.least)
        else:
            lengths = random.integers(feature.least, feature.most + 1, samples)
        splits = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        numbers = feature.popularity.draw(random, int(splits[-1]))
        # mix64 is a bijection: different numbers give different ids, spread over all 64 bits.
        values = mix64(torch.from_numpy(numbers) + self._salts[feature.name])
        return Ragged.trusted(values, torch.from_numpy(splits))


def clicks(
    batch_size: int,
    steps: int,
    *,
    seed: int = 0,
    users: int = 500,
    items: int = 200,
    history: int = 8,
) -> SyntheticClicks:
    """Returns clicks of users on items, in which users have a history of up to `history` items.

    Batches unpack as `dense, ids, labels`: 4 dense columns; the features user, item and history,
    where history has the ids of item; and a label of 1 for a click.

    >>> for dense, ids, clicked in clicks(batch_size=256, steps=2):
    ...     print(dense.shape, ids.names, clicked.shape)
    torch.Size([256, 4]) ('user', 'item', 'history') torch.Size([256])
    torch.Size([256, 4]) ('user', 'item', 'history') torch.Size([256])
    """
    of_items = power_law(checks.count("items", items, least=1))
    features = [
        ClickFeature("user", power_law(checks.count("users", users, least=1))),
        ClickFeature("item", of_items),
        ClickFeature("history", of_items, table="item", least=0, most=history),
    ]
    return SyntheticClicks(features, batch_size, steps, seed=seed)


def wide_clicks(
    batch_size: int,
    steps: int,
    *,
    seed: int = 0,
    features: int = 26,
    rows: int = 1_000_000,
) -> SyntheticClicks:
    """Returns clicks with many features of one id per sample, and tables of `rows` rows each.

    Ids repeat within a batch as in production; see docs/guides/data.md.

    >>> source = wide_clicks(batch_size=512, steps=1, features=3, rows=10_000)
    >>> source.batch(0).ids.names
    ('f0', 'f1', 'f2')
    """
    popularities = fitted_popularities(features, rows, batch_size)
    chosen = [ClickFeature(f"f{i}", popularity) for i, popularity in enumerate(popularities)]
    return SyntheticClicks(chosen, batch_size, steps, seed=seed)
