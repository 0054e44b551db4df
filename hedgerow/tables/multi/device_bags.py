"""Bags of features pooled straight from the rows of tables on a device. Nothing here waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from ...core.shapes import Float32, Int64
from ...ops.segment import ragged_rows
from ..bags import Bags, Feature, FeatureKeys
from ..store import Lookup, Missing

if TYPE_CHECKING:
    from .device_tables import DeviceTables

POOLED = ("sum", "mean", "sqrtn")  # what the kernel pools


@dataclass(frozen=True, slots=True)
class DeviceReader:
    """Pools bags over tables on a device."""

    store: DeviceTables

    def read(
        self, bags: Bags, *, training: bool, step: int, keep: bool
    ) -> tuple[tuple[Tensor, ...], DeviceBags | None]:
        """The vectors of each feature; to `keep`: what an update of them needs."""
        found = DeviceBags.of(self.store, bags)
        return found.pooled("training" if training else "zeros"), found if keep else None


@dataclass(frozen=True, slots=True, eq=False)
class DeviceBags:
    """The bags of a batch: where their rows are, and how they are cut."""

    store: DeviceTables
    keys: FeatureKeys
    found: Lookup
    splits: tuple[Int64[Tensor, "samples+1"], ...]  # of each feature's ids
    weights: tuple[Float32[Tensor, "n"] | None, ...]

    @staticmethod
    def of(store: DeviceTables, bags: Bags) -> DeviceBags:
        """The bags of a group of features."""
        keys, batch = bags.keys(len(store.names)), bags.batch
        names = [feature.name for feature in keys.features]
        return DeviceBags(
            store,
            keys,
            store.find(keys.keys),
            tuple(batch.feature(name).row_splits for name in names),
            tuple(batch.weights_of(name) for name in names),
        )

    def pooled(self, missing: Missing) -> tuple[Float32[Tensor, "samples dim"], ...]:
        """One vector a sample and feature."""
        return tuple(
            self.store.pool(
                self.found,
                feature.table,
                (self.keys.borders[i], self.keys.borders[i + 1]),
                self.splits[i],
                str(feature.pooling),
                weights=self.weights[i],
                missing=missing,
            )
            for i, feature in enumerate(self.features)
        )

    @property
    def features(self) -> tuple[Feature, ...]:
        """The features, in the order of the outputs."""
        return self.keys.features

    @property
    def at(self) -> Lookup:
        """Where the rows were found."""
        return self.found

    @property
    def learner(self) -> None:
        """None: the store learns, in the slots of the lookup."""
        return None

    def ids_of(self, i: int) -> Int64[Tensor, "n"]:
        """The ids of feature `i`."""
        return self.keys.ids_of(i)

    def key_gradients(self, i: int, grad: Tensor) -> Float32[Tensor, "n dim"]:
        """The gradient of each id of feature `i`."""
        pooling, splits = self.features[i].pooling, self.splits[i]
        if pooling != "sum":
            count = splits.diff().clamp(min=1).unsqueeze(1).to(grad.dtype)
            grad = grad / (count if pooling == "mean" else count.sqrt())
        rows, weights = ragged_rows(splits, grad, len(self.ids_of(i))), self.weights[i]
        return rows.float() if weights is None else rows * weights.unsqueeze(1)
