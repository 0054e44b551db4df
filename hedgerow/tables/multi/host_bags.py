"""Bags of features over host tables: read and pooled in one call of the core, learnt in one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from ... import native
from ...core.errors import NotFiniteError
from ...core.recycle import Recycler
from ...core.shapes import Float32, Int32, Int64
from ..bags import Bags, Feature, FeatureGroup, Gradients
from ..host import HostTable
from ..host_core import RowsMark
from ..memory_errors import memory_errors
from ..store import Lookup, TableKeys

_NO_GRADIENT = (0, 0, 0, 0)
_Cells = tuple[int, int, int, list[int], int, int]


class HostBags:
    """A group of features over host tables. What does not change from step to step is kept here.

    Safe from many threads.
    """

    def __init__(self, tables: Sequence[HostTable], group: FeatureGroup, outputs: Recycler) -> None:
        self.features = group.features
        self.tables = tables  # of the store
        self._places = list(group.places)
        self._outputs = outputs
        owners = [tables[feature.table] for feature in self.features]
        self._dims = [table.layout.dim for table in owners]
        kept = [f.pooling[1] if isinstance(f.pooling, tuple) else 0 for f in self.features]
        self._tails = [
            (many, dim) if many else (dim,) for many, dim in zip(kept, self._dims, strict=True)
        ]
        self._unpooled = [i for i, f in enumerate(self.features) if f.pooling == "none"]
        self._shaped: tuple[int, list[int], list[tuple[int, ...]]] = (-1, [], [])
        self._rejects = [table.config.not_finite == "reject" for table in owners]
        self._rejects_any = any(self._rejects)
        fixed = [table.core.fixed_rates for table in tables]
        self.fixed_rates = [one for one in fixed if one is not None] if all(fixed) else None
        self.counts_uses = any(table.order is not None for table in tables)
        self.core = native.Bags(
            [
                (
                    table.core.reader(0),
                    feature.table,
                    feature.pooling if isinstance(feature.pooling, str) else feature.pooling[0],
                    many,
                    table.config.admit is None,
                )
                for table, feature, many in zip(owners, self.features, kept, strict=True)
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
        addresses: list[int] = []  # filled in the loop: each comprehension would be a call
        for out, shape in zip(outs, shapes, strict=True):
            addresses.append(out.resize_(*shape).data_ptr())
        found = self.core.lookup(self._cells(bags), training, step, addresses, reused, keep)
        return outs, None if found is None else BagsRead(self, found)

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
        """The ids of a batch as the core takes them."""
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

    def spread(self, found: native.BagRows, i: int, grad: Tensor) -> Float32[Tensor, "n dim"]:
        """The gradient of each id of feature `i`."""
        grad = _plain(grad)
        out = torch.empty(found.count(i), self._dims[i], dtype=torch.float32, device="cpu")
        self.core.spread(found, i, _place(grad), out.data_ptr())
        return out

    def check_finite(
        self, found: native.BagRows, grads: Sequence[Tensor | None], places: list[int]
    ) -> None:
        """Refuses the first gradient that a table which rejects such may not take."""
        if not self._rejects_any:
            return
        at, bag, column = self.core.not_finite(found, places, self._rejects)
        if at < 0:
            return
        grad, feature = grads[at], self.features[at]
        assert grad is not None
        value = float(grad.reshape(grad.shape[0], -1)[bag, column])
        weighted = " times a weight of its ids" if math.isfinite(value) else ""
        raise NotFiniteError(
            f"the gradient of feature {feature.name!r} at [{bag}, {column}] is {value}{weighted}; "
            f"table {self.tables[feature.table].config.name!r} rejects what is not finite, and "
            f"nothing was changed. Find its source, or make the table with not_finite='drop'."
        )


@dataclass(frozen=True, slots=True, eq=False)
class BagsRead:
    """Bags that were read from host tables, as they were then, and where their rows were."""

    group: HostBags
    found: native.BagRows

    @property
    def features(self) -> tuple[Feature, ...]:
        """The features, in the order of the outputs."""
        return self.group.features

    @property
    def at(self) -> Lookup:
        """Where the rows were found, for updates that need the gradient of each id."""
        tables, sizes = self.group.tables, [0] * len(self.group.tables)
        for i, feature in enumerate(self.features):
            sizes[feature.table] += self.found.count(i)
        ids = torch.cat([self.ids_of(i) for i in range(len(self.features))])
        slots, marks = found_rows(self.found, [one.table for one in self.features], tables)
        dims = tuple(table.layout.dim for table in tables)
        nothing = torch.empty(0, dtype=torch.float32, device="cpu")
        return Lookup(TableKeys(ids, (0, *accumulate(sizes))), nothing, dims, slots, marks)

    def ids_of(self, i: int) -> Int64[Tensor, "n"]:
        """The ids of feature `i`."""
        ids = torch.empty(self.found.count(i), dtype=torch.int64, device="cpu")
        self.found.ids(i, ids.data_ptr())
        return ids

    def key_gradients(self, i: int, grad: Tensor) -> Float32[Tensor, "n dim"]:
        """The gradient of each id of feature `i`."""
        return self.group.spread(self.found, i, grad)

    @property
    def learner(self) -> BagsRead:
        """Itself."""
        return self

    def learns(self, given: Sequence[Gradients], clip: float) -> bool:
        """Any number of reads of one store."""
        del clip
        for one in given:
            if not (isinstance(one.read, BagsRead) and one.read.group.tables is self.group.tables):
                return False
        return True

    def learn(self, given: Sequence[Gradients], *, clip: float, step: int, ts: int) -> None:
        """One optimizer step per table and id. All is checked before the first row changes."""
        tables = self.group.tables
        uses = [0] * len(tables)
        parts, held = [], []  # what the core reads lives until it is done
        for one in given:
            read = one.read
            assert isinstance(read, BagsRead)  # as `learns` has seen
            group = read.group
            grads = [None if grad is None else _plain(grad) for grad in one.grads]
            places: list[int] = []  # one list: many tuples would wake the garbage collector
            for grad in grads:
                places += _NO_GRADIENT if grad is None else _place(grad)
            group.check_finite(read.found, grads, places)
            if group.counts_uses:
                _count_uses(read, grads, uses)
            parts.append((group.core, read.found, places))
            held.append(grads)
        rates = self.group.fixed_rates or [table.core.rates_at(step) for table in tables]
        if self.group.counts_uses:
            times = [
                table.core.stamps.stamp(ts, n) if n else 0
                for table, n in zip(tables, uses, strict=True)
            ]
        else:  # they have one clock
            times = [tables[0].core.stamps.stamp(ts, 0)] * len(tables)
        with memory_errors():
            native.learn_bags(parts, step, rates, times, clip)


def found_rows(
    found: native.BagRows, owners: Sequence[int], tables: Sequence[HostTable]
) -> tuple[Int32[Tensor, "n"], tuple[RowsMark | None, ...]]:
    """Where the rows of features were found, and until when that holds for each table.

    `owners` are the numbers of the features' tables.
    """
    counts = [found.count(i) for i in range(len(owners))]
    slots = torch.empty(sum(counts), dtype=torch.int32, device="cpu")
    marks: list[RowsMark | None] = [table.core.mark() for table in tables]
    seen: dict[int, int] = {}
    at = slots.data_ptr()
    for i, k in enumerate(owners):
        changes = found.rows(i, at)
        at += 4 * counts[i]
        if seen.setdefault(k, changes) == changes:
            marks[k] = RowsMark(tables[k].core.native_table, changes)
        else:  # rows came or went while the features of this table were read
            marks[k] = None
    return slots, tuple(marks)


def _count_uses(read: BagsRead, grads: Sequence[Tensor | None], uses: list[int]) -> None:
    """Adds how many ids of each table have a gradient."""
    for i, (feature, grad) in enumerate(zip(read.features, grads, strict=True)):
        uses[feature.table] += 0 if grad is None else read.found.count(i)


def _plain(grad: Tensor) -> Tensor:
    """A gradient as the core reads it: float32 at addresses and strides."""
    if grad.dtype is torch.float32 and grad.layout is torch.strided and not grad.is_neg():
        return grad
    return grad.to_dense().resolve_neg().float()


def _place(grad: Tensor) -> tuple[int, int, int, int]:
    strides = grad.stride()
    return grad.data_ptr(), strides[0], strides[1] if len(strides) == 3 else 0, strides[-1]
