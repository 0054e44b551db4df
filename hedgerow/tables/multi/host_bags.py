"""Bags of features over host tables: read and pooled in one call of the core, learnt in one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ... import native
from ...core.errors import NotFiniteError
from ...core.recycle import Recycler
from ...core.shapes import Float32, Int64
from ..bags import Bags, Feature, FeatureGroup
from ..host import HostTable
from ..memory_errors import memory_errors
from ..store import Lookup

_NO_GRADIENT = (0, 0, 0, 0)
_Cells = tuple[int, int, int, list[int], int, int]


class HostBags:
    """A group of features over host tables. What does not change from step to step is kept here.

    Safe from many threads.
    """

    def __init__(self, tables: Sequence[HostTable], group: FeatureGroup, outputs: Recycler) -> None:
        self.features = group.features
        self._places = list(group.places)
        self._outputs = outputs
        numbers = sorted({feature.table for feature in self.features})
        self._tables = [tables[k] for k in numbers]
        self._of_feature = [numbers.index(feature.table) for feature in self.features]
        owners = [self._tables[t] for t in self._of_feature]
        self._dims = [table.layout.dim for table in owners]
        kept = [f.pooling[1] if isinstance(f.pooling, tuple) else 0 for f in self.features]
        self._tails = [
            (many, dim) if many else (dim,) for many, dim in zip(kept, self._dims, strict=True)
        ]
        self._unpooled = [i for i, f in enumerate(self.features) if f.pooling == "none"]
        self._shaped: tuple[int, list[int], list[tuple[int, ...]]] = (-1, [], [])
        self._rejects = [table.config.not_finite == "reject" for table in owners]
        self._rejects_any = any(self._rejects)
        fixed = [table.fixed_rates for table in self._tables]
        self._rates = [one for one in fixed if one is not None] if all(fixed) else None
        self._ordered = any(table.order is not None for table in self._tables)
        self._core = native.Bags(
            [
                (
                    table.reader(0),
                    number,
                    feature.pooling if isinstance(feature.pooling, str) else feature.pooling[0],
                    many,
                    table.config.admit is None,
                )
                for table, number, feature, many in zip(
                    owners, self._of_feature, self.features, kept, strict=True
                )
            ]
        )

    def read(
        self, bags: Bags, *, training: bool, step: int, keep: bool
    ) -> tuple[tuple[Tensor, ...], BagsRead | None]:
        """The vectors of each feature and, to `keep` for an update, where their rows were."""
        sizes, shapes = self._shapes(bags)
        flat, reused = self._outputs.take(sum(sizes))
        # Parts that are no views of each other: autograd takes in-place changes of such outputs.
        outs = torch.unsafe_split_with_sizes(flat, sizes)
        for out, shape in zip(outs, shapes, strict=True):
            out.resize_(*shape)
        addresses = [out.data_ptr() for out in outs]
        found = self._core.lookup(self._cells(bags), training, step, addresses, reused, keep)
        return outs, None if found is None else BagsRead(self, bags, found)

    def _shapes(self, bags: Bags) -> tuple[list[int], list[tuple[int, ...]]]:
        """How many values each output has, and its shape; kept for batches of as many samples."""
        samples, (known, sizes, shapes) = bags.batch.samples, self._shaped
        if known != samples:
            shapes = [(samples, *tail) for tail in self._tails]
            for i in self._unpooled:
                shapes[i] = (len(bags.ids_of(i)), *self._tails[i])
            sizes = [math.prod(shape) for shape in shapes]
            if not self._unpooled:
                self._shaped = (samples, sizes, shapes)
        return sizes, shapes

    def _cells(self, bags: Bags) -> _Cells:
        batch = bags.batch
        weights = None if self._unpooled else batch.weights  # unpooled rows are shown as they are
        return (
            batch.values.data_ptr(),
            batch.values.shape[0],
            batch.offsets.data_ptr(),
            self._places,
            batch.samples,
            0 if weights is None else weights.data_ptr(),
        )

    def learn(
        self,
        bags: Bags,
        found: native.BagRows,
        grads: Sequence[Tensor | None],
        *,
        step: int,
        ts: int,
    ) -> None:
        """One optimizer step per table and id. All is checked before the first row changes."""
        held = [None if grad is None else _plain(grad) for grad in grads]  # alive during the call
        places: list[int] = []  # one list: many tuples would wake the garbage collector
        for grad in held:
            places += _NO_GRADIENT if grad is None else _place(grad)
        cells = self._cells(bags)
        if self._rejects_any:
            at, bag, column = self._core.not_finite(cells, places, self._rejects)
            if at >= 0:
                self._reject(held, at, bag, column)
        rates = self._rates or [table.rates_at(step) for table in self._tables]
        times = self._times(bags, held, ts)
        with memory_errors():
            self._core.learn(cells, found, places, step, rates, times)

    def spread(
        self, bags: Bags, found: native.BagRows, i: int, grad: Tensor
    ) -> Float32[Tensor, "n dim"]:
        """The gradient of each id of feature `i`."""
        grad = _plain(grad)
        out = torch.empty(len(bags.ids_of(i)), self._dims[i], dtype=torch.float32)
        self._core.spread(self._cells(bags), found, i, _place(grad), out.data_ptr())
        return out

    def _times(self, bags: Bags, grads: Sequence[Tensor | None], ts: int) -> list[int]:
        """The stamp of each table's write."""
        if not self._ordered:  # they have one clock
            return [self._tables[0].stamp(ts, 0)] * len(self._tables)
        borders, uses = bags.batch.borders(), [0] * len(self._tables)
        for t, place, grad in zip(self._of_feature, self._places, grads, strict=True):
            uses[t] += 0 if grad is None else borders[place + 1] - borders[place]
        return [table.stamp(ts, n) if n else 0 for table, n in zip(self._tables, uses, strict=True)]

    def _reject(self, grads: Sequence[Tensor | None], at: int, bag: int, column: int) -> None:
        grad, feature = grads[at], self.features[at]
        assert grad is not None
        value = float(grad.reshape(grad.shape[0], -1)[bag, column])
        raise NotFiniteError(
            f"the gradient of feature {feature.name!r} at [{bag}, {column}] is {value}; table "
            f"{self._tables[self._of_feature[at]].config.name!r} rejects what is not finite, and "
            f"nothing was changed. Find its source, or make the table with not_finite='drop'."
        )


@dataclass(frozen=True, slots=True, eq=False)
class BagsRead:
    """Bags that were read from host tables, and where their rows were."""

    group: HostBags
    bags: Bags
    found: native.BagRows

    @property
    def features(self) -> tuple[Feature, ...]:
        """The features, in the order of the outputs."""
        return self.group.features

    @property
    def at(self) -> Lookup | None:
        """None: vectors were read."""
        return None

    def ids_of(self, i: int) -> Int64[Tensor, "n"]:
        """The ids of feature `i`."""
        return self.bags.ids_of(i)

    def key_gradients(self, i: int, grad: Tensor) -> Float32[Tensor, "n dim"]:
        """The gradient of each id of feature `i`."""
        return self.group.spread(self.bags, self.found, i, grad)

    def learns_whole(self, grads: Sequence[Tensor | None]) -> bool:
        """Whether there is a gradient."""
        return any(grad is not None for grad in grads)

    def learn(self, grads: Sequence[Tensor | None], *, step: int, ts: int) -> None:
        """One optimizer step per id with a gradient."""
        self.group.learn(self.bags, self.found, grads, step=step, ts=ts)


def _plain(grad: Tensor) -> Tensor:
    """A gradient as the core reads it: float32 at addresses and strides."""
    if grad.dtype is torch.float32 and grad.layout is torch.strided and not grad.is_neg():
        return grad
    return grad.to_dense().resolve_neg().float()


def _place(grad: Tensor) -> tuple[int, int, int, int]:
    strides = grad.stride()
    return grad.data_ptr(), strides[0], strides[1] if len(strides) == 3 else 0, strides[-1]
