"""Bags pooled straight from the rows of device tables, as outputs that autograd knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..core.id_batch import IdBatch
from ..core.shapes import Float32, Int64
from ..ops.segment import ragged_rows
from ..tables.store import Lookup, Missing
from .reading import Collect, Reading

if TYPE_CHECKING:
    from ..tables.multi.device_tables import DeviceTables

_FROM_ROWS = ("sum", "mean", "sqrtn")  # what the kernel pools


@dataclass(frozen=True, slots=True, eq=False)
class Bags:
    """The bags of a batch: where their rows are, and how they are cut. Nothing here waits."""

    store: DeviceTables
    reading: Reading
    found: Lookup
    splits: tuple[Int64[Tensor, "samples+1"], ...]  # of each feature's ids
    weights: tuple[Float32[Tensor, "n"] | None, ...]

    @staticmethod
    def of(store: DeviceTables, batch: IdBatch, reading: Reading) -> Bags:
        """The bags of the features of a reading."""
        bags = [batch.feature(feature.name) for feature in reading.features]
        return Bags(
            store,
            reading,
            store.find(reading.keys),
            tuple(one.row_splits for one in bags),
            tuple(batch.weights_of(feature.name) for feature in reading.features),
        )

    def pooled(self, missing: Missing) -> tuple[Float32[Tensor, "samples dim"], ...]:
        """One vector a sample and feature."""
        return tuple(
            self.store.pool(
                self.found,
                feature.table,
                (self.reading.borders[i], self.reading.borders[i + 1]),
                self.splits[i],
                str(feature.pooling),
                weights=self.weights[i],
                missing=missing,
            )
            for i, feature in enumerate(self.reading.features)
        )

    def spread(self, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Gradients of the rows from those of the vectors."""
        return [None if grad is None else self._rows(i, grad) for i, grad in enumerate(grads)]

    def _rows(self, i: int, grad: Float32[Tensor, "samples dim"]) -> Float32[Tensor, "n dim"]:
        pooling, splits = self.reading.features[i].pooling, self.splits[i]
        if pooling != "sum":
            count = splits.diff().clamp(min=1).unsqueeze(1).to(grad.dtype)
            grad = grad / (count if pooling == "mean" else count.sqrt())
        many = self.reading.borders[i + 1] - self.reading.borders[i]
        rows, weights = ragged_rows(splits, grad, many), self.weights[i]
        return rows if weights is None else rows * weights.unsqueeze(1)


class PooledRows(torch.autograd.Function):
    """Pooled bags as outputs; the gradients of their rows are collected as `RowsOf` does."""

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, bags: Bags, missing: Missing, collect: Collect
    ) -> tuple[Tensor, ...]:
        """The vectors of each feature."""
        del anchor
        ctx.set_materialize_grads(False)
        ctx.bags, ctx.collect = bags, collect
        return bags.pooled(missing)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[None, None, None, None]:
        """Hands the gradients of the rows over."""
        ctx.collect(ctx.bags.reading, ctx.bags.spread(grads))
        return None, None, None, None


def pools_from_rows(store: object, batch: IdBatch, reading: Reading) -> bool:
    """Whether bags need no rows of their own: tables on a device, several ids a sample."""
    if not hasattr(store, "pool"):
        return False
    tables: Any = store
    if batch.weights is None and batch.has_one_id_each():
        return False  # the rows are the vectors
    if batch.weights is not None and batch.weights.requires_grad:
        return False
    return all(f.pooling in _FROM_ROWS and tables.is_on_device(f.table) for f in reading.features)
