"""One batch as keys of a store, and its rows as tensors that autograd knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from ..core.checks import unknown
from ..core.id_batch import IdBatch
from ..core.shapes import Float32, Int64
from ..tables.store import Lookup, TableKeys


@dataclass(frozen=True, slots=True, eq=False)
class Feature:
    """Where a feature's ids stand: its table's number, and how its bags are pooled."""

    name: str
    table: int
    pooling: str | tuple[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """The keys of one batch, table after table, each table's features in their order."""

    keys: TableKeys
    features: tuple[Feature, ...]  # in the order of their ids
    borders: tuple[int, ...]  # of the features in keys.ids, and the end

    @staticmethod
    def of(batch: IdBatch, features: Sequence[Feature], tables: int) -> Reading:
        """The features of a batch; those that no table knows are left out."""
        for feature in features:
            if feature.name not in batch.names:
                unknown("feature", feature.name, batch.names)
        borders = batch.borders()
        places = [batch.names.index(feature.name) for feature in features]
        sizes = [borders[place + 1] - borders[place] for place in places]
        if places == list(range(len(batch.names))):
            ids = batch.values
        else:
            ids = torch.cat([batch.values[borders[p] : borders[p + 1]] for p in places])
        of_table = [0] * tables
        for feature, size in zip(features, sizes, strict=True):
            of_table[feature.table] += size
        keys = TableKeys(ids, (0, *accumulate(of_table)))
        return Reading(keys, tuple(features), (0, *accumulate(sizes)))

    def rows(self, found: Lookup) -> tuple[Float32[Tensor, "n dim"], ...]:
        """The rows of each feature, without a copy."""
        parts = []
        for i, feature in enumerate(self.features):
            start = self.keys.splits[feature.table]
            of_table = found.rows_of(feature.table)
            parts.append(of_table[self.borders[i] - start : self.borders[i + 1] - start])
        return tuple(parts)

    def ids_of(self, i: int) -> Int64[Tensor, "n"]:
        """The ids of feature `i`."""
        return self.keys.ids[self.borders[i] : self.borders[i + 1]]


Collect = Callable[[Reading, Sequence[Tensor | None]], None]


class RowsOf(torch.autograd.Function):
    """Rows as outputs whose gradients are collected instead of flowing on.

    The anchor is an empty tensor that requires a gradient: without an input that does, autograd
    would not come back here. It is no Parameter, so optimizers and DDP never see it.
    """

    @staticmethod
    def forward(
        ctx: Any, anchor: Tensor, reading: Reading, found: Lookup, collect: Collect
    ) -> tuple[Tensor, ...]:
        """The rows of each feature."""
        del anchor
        ctx.set_materialize_grads(False)
        ctx.reading, ctx.collect = reading, collect
        return reading.rows(found)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[None, None, None, None]:
        """Hands the gradients over."""
        ctx.collect(ctx.reading, grads)
        return None, None, None, None
