"""The ground truth of synthetic clicks: a chance is a pure function of seed, ids and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..core.hashing import id64, mix64
from ..core.ids import Ragged

Numbers = NDArray[np.float64]
DENSE_COLUMNS = 4
_FACTORS = 3  # with the bias, four numbers of 16 bits: one hash an id
_OF_DENSE = np.array([0.5, -0.4, 0.3, -0.2])
_OF_BIAS, _OF_PAIRS, _INTERCEPT = 0.7, 3.0, -0.5


@dataclass(frozen=True, slots=True)
class Best:
    """What a model that knows the true chances reaches; nobody can do better in the mean.

    >>> Best.of(np.array([0.5, 0.5]))
    Best(auc=0.5, log_loss=0.6931471805599453, click_rate=0.5)
    """

    auc: float
    log_loss: float
    click_rate: float

    @staticmethod
    def of(chances: Numbers) -> Best:
        """Expected over the labels, from the chances of a sample."""
        p = np.sort(chances)
        q = 1 - p
        with np.errstate(divide="ignore", invalid="ignore"):
            entropy = -np.nan_to_num(p * np.log(p)) - np.nan_to_num(q * np.log(q))
        below = np.cumsum(q) - q  # refusals expected under each sample
        _, first, same = np.unique(p, return_index=True, return_counts=True)
        tied = np.repeat(np.add.reduceat(q, first), same)
        wins = (p * (np.repeat(below[first], same) + tied / 2)).sum()
        auc = wins / (p.sum() * q.sum())
        return Best(float(auc), float(entropy.mean()), float(p.mean()))


@dataclass(frozen=True, slots=True)
class ClickTruth:
    """Chance of a click: numbers, a bias an id, and the products of all pairs of features.

    Every id has a bias and a vector of 3, both from a hash of (seed, table, id); a feature is the
    sum over its ids. The logit is what a factorization machine computes from them.
    """

    seed: int
    tables: Mapping[str, str]  # feature -> table
    scales: Mapping[str, float]  # feature -> what its sum is multiplied with

    def chances(self, dense: Numbers, ids: Mapping[str, Ragged]) -> Numbers:
        """One chance a sample."""
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
        """Bias and vector, summed over the ids of a sample."""
        key = id64(self.tables[feature], field=f"click truth {self.seed}")
        words = mix64(column.values ^ key).numpy().view(np.uint16).reshape(-1, 1 + _FACTORS)
        even = (words - 32767.5) * (np.sqrt(3) / 32768)  # mean 0, variance 1
        rows = np.repeat(np.arange(column.rows), column.lengths().numpy())
        sums = [np.bincount(rows, numbers, column.rows) for numbers in even.T]
        return np.stack(sums, axis=1, dtype=np.float64) * self.scales[feature]
