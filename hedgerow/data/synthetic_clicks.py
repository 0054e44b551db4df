"""Synthetic clicks: batches of raw 64-bit ids with a known ground truth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from ..core import checks
from ..core.errors import ConfigError, InputError
from ..core.hashing import id64, mix64
from ..core.id_batch import IdBatch
from ..core.ids import Ragged
from .batch import Batch, check_state
from .batch_source import BatchSource
from .click_truth import DENSE_COLUMNS, Best, ClickTruth
from .duplication import Popularity, fitted_popularities, power_law

_TRAINING, _HELD_OUT, _BEST = 0, 1, 2  # streams of samples that share nothing but the truth


@dataclass(frozen=True, slots=True)
class ClickFeature:
    """A feature of synthetic clicks: which ids, and how many a sample.

    >>> ClickFeature("history", power_law(200), table="item", least=0, most=8).mean_ids
    4.0
    """

    name: str
    popularity: Popularity
    table: str = ""  # whose ids these are; its own if empty
    least: int = 1
    most: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most or not self.most:
            raise ConfigError(
                f"feature {self.name!r} has {self.least} to {self.most} ids a sample; the least "
                f"must not be above the most, which must be at least 1."
            )

    @property
    def mean_ids(self) -> float:
        """Ids of a sample in the mean."""
        return (self.least + self.most) / 2


class SyntheticClicks(BatchSource):
    """Batches of synthetic clicks; each is a pure function of (seed, its number). Not thread-safe.

    Iteration goes on where the last one stopped, and begins anew after the last batch: the same
    batches again.

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
        """Batch number `step`, wherever iteration stands."""
        if not 0 <= step < self._steps:
            raise InputError(f"step is {step}; it must lie in 0..{self._steps - 1}.")
        dense, ids, labels, _ = self._samples(self._stream, step, self._batch_size)
        return Batch(
            torch.from_numpy(dense.astype(np.float32)),
            IdBatch.from_dict(ids),
            torch.from_numpy(labels.astype(np.float32)),
        )

    def held_out(self, batch_size: int, steps: int) -> SyntheticClicks:
        """Other samples of the same truth, to test on."""
        return SyntheticClicks(self._features, batch_size, steps, seed=self._seed, stream=_HELD_OUT)

    def best(self, samples: int = 200_000) -> Best:
        """What the true chances reach on so many other samples.

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
        """The position, as plain values; for `load_state_dict` of a source of the same settings."""
        self._check_position()
        return {"step": self._step, **self._settings()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes to a position; what follows is exactly what followed where it was taken."""
        check_state(state, ("step",), self._settings())
        if state["step"] > self._steps:
            raise InputError(
                f"the position is step {state['step']} of {self._steps}; make the source with "
                f"at least so many steps."
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
        """Numbers, ids, labels, true chances."""
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
        # mix64 is one to one: different numbers are different ids, scattered over all 64 bits.
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
    """Users who see an item and have a history of up to so many others.

    Batches unpack as `dense, ids, labels`: 4 numbers a sample; the features user, item and
    history, which shares the ids of item; 1 for a click.

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
    """Many features of one id a sample, with tables of so many rows each.

    Ids repeat within a batch as they do in production: see docs/guides/data.md.

    >>> source = wide_clicks(batch_size=512, steps=1, features=3, rows=10_000)
    >>> source.batch(0).ids.names
    ('f0', 'f1', 'f2')
    """
    popularities = fitted_popularities(features, rows, batch_size)
    chosen = [ClickFeature(f"f{i}", popularity) for i, popularity in enumerate(popularities)]
    return SyntheticClicks(chosen, batch_size, steps, seed=seed)
