"""All features of alike tables on a device: one kernel reads and pools them, one update learns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...core.shapes import Float32, Int32, Int64
from ...kernels.output_gradients import Occurrences, OutputGradients
from ...kernels.spread import spread
from ..bags import Bags, Feature, FeatureGroup, Gradients
from ..copies import numbers_on
from ..device_slots import MAX_IDS
from ..store import Lookup, TableKeys

if TYPE_CHECKING:
    from .device_group import DeviceGroup
    from .device_tables import DeviceTables

Outputs = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Shape:
    """What the sizes of a batch say; kept, because most batches of a model have the same."""

    batch_borders: tuple[int, ...]
    splits: tuple[int, ...]  # of the tables
    borders: tuple[int, ...]  # of the features among the keys
    in_order: bool  # whether the ids of the batch are the keys
    shifts: Int64[Tensor, "F"]  # from the places of ids in the batch to those in the keys
    cuts: Int64[Tensor, "F+1"]  # the borders, on the device

    @property
    def sizes(self) -> list[int]:
        """Ids of each feature."""
        return [stop - start for start, stop in pairwise(self.borders)]


class GroupFeatures:
    """A group of features over a whole group of alike tables. Single-owner.

    What does not change from step to step is kept here.
    """

    def __init__(self, store: DeviceTables, tables: DeviceGroup, group: FeatureGroup) -> None:
        self.store, self.tables, self.group = store, tables, group
        features = group.features
        self.unpooled = all(feature.pooling == "none" for feature in features)
        self.features = tables.features(
            [feature.table for feature in features],
            group.places,
            [feature.pooling for feature in features],
        )
        self._owners = [feature.table for feature in features]
        self._firsts = any(isinstance(feature.pooling, tuple) for feature in features)
        self._shape: _Shape | None = None
        self._places: tuple[list[int], Tensor | None] = ([], None)

    def takes(self, bags: Bags) -> bool:
        """Whether it can read this batch: kernels count in 32 bits."""
        batch, weights = bags.batch, bags.batch.weights
        plain = weights is None or (weights.is_contiguous() and not weights.requires_grad)
        if not plain and not self.unpooled:
            return False
        if not batch.values.is_contiguous() or not batch.offsets.is_contiguous():
            return False
        if batch.values.device != self.store.device:  # the old way says what is wrong
            return False
        room = max(batch.values.shape[0], batch.samples * max(self.features.fans))
        return room * len(self.group.features) < MAX_IDS

    def read(
        self, bags: Bags, *, training: bool, step: int, keep: bool
    ) -> tuple[Outputs, FeaturesRead | None]:
        """The outputs of all features and, to `keep` for an update, where their rows are."""
        del step
        batch, shape = bags.batch, self._shape_of(bags)
        ids = batch.values
        if not shape.in_order:
            ids = torch.cat([bags.ids_of(i) for i in range(len(self.group.features))])
        keys = TableKeys(ids, shape.splits)
        single = not self._firsts and batch.weights is None and batch.has_one_id_each()
        if self.unpooled or single:
            outs, slots, at = self._rows(keys, shape, training)
        else:
            outs, slots, at = self._pooled(bags, keys, shape, training)
        if not keep:
            return outs, None
        epochs = self.tables.epochs()
        return outs, FeaturesRead(self, keys, shape.borders, slots, at, epochs, batch.samples)

    def gradients(self, read: FeaturesRead, grads: Sequence[Tensor | None]) -> OutputGradients:
        """The gradients of the outputs of a read, where they are."""
        firsts = [first if first < 0 else first * read.samples for first in self.features.largest]
        plain = [None if grad is None else _plain(grad) for grad in grads]
        n, dim = len(read.keys.ids), self.store.dims[0]
        return OutputGradients.of(plain, read.occurrences, n, dim, firsts, self._on_device)

    # ---- helpers

    def _rows(
        self, keys: TableKeys, shape: _Shape, training: bool
    ) -> tuple[Outputs, Int32[Tensor, "n"], Occurrences]:
        """The rows themselves: of ids without bags, or of one id per bag."""
        sizes, n = shape.sizes, len(keys.ids)
        out = torch.empty(n, self.store.dims[0], dtype=torch.float32, device=keys.ids.device)
        room = max(sizes, default=0)
        ragged = room if any(size != room for size in sizes) else None
        slots, rows = self.tables.rows_of_features(
            self.features, keys.ids, out, shape.cuts, ragged, born=training
        )
        # Parts that are no views of each other: autograd takes in-place changes of such outputs.
        outs = torch.unsafe_split_with_sizes(out, sizes)
        return tuple(outs), slots, Occurrences(room, rows)

    def _pooled(
        self, bags: Bags, keys: TableKeys, shape: _Shape, training: bool
    ) -> tuple[Outputs, Int32[Tensor, "n"], Occurrences]:
        batch, weights = bags.batch, bags.batch.weights
        if weights is not None and not shape.in_order:
            where = [(batch.borders()[p], batch.borders()[p + 1]) for p in self.group.places]
            weights = torch.cat([weights[start:stop] for start, stop in where])
        samples, fans = batch.samples, self.features.fans
        found = self.tables.pooled_features(
            *(self.features, keys.ids, batch.offsets, shape.shifts, samples, weights),
            born=training,
        )
        outs = torch.unsafe_split_with_sizes(found.vectors, [samples * fan for fan in fans])
        for out, fan, feature in zip(outs, fans, self.group.features, strict=True):
            if isinstance(feature.pooling, tuple):
                out.resize_(samples, fan, out.shape[1])
        return tuple(outs), found.slots, found.at

    def _shape_of(self, bags: Bags) -> _Shape:
        batch_borders, known = tuple(bags.batch.borders()), self._shape
        capturing = self.tables.is_capturing()  # a graph needs its own: those kept are replaced
        if known is not None and known.batch_borders == batch_borders and not capturing:
            return known
        places, device = self.group.places, self.store.device
        sizes = [batch_borders[place + 1] - batch_borders[place] for place in places]
        of_table = [0] * len(self.store.names)
        for owner, size in zip(self._owners, sizes, strict=True):
            of_table[owner] += size
        borders = (0, *accumulate(sizes))
        shifts = [borders[i] - batch_borders[place] for i, place in enumerate(places)]
        numbers = numbers_on([*shifts, *borders], device)
        made = _Shape(
            batch_borders,
            (0, *accumulate(of_table)),
            borders,
            not any(shifts) and borders[-1] == batch_borders[-1],
            numbers[: len(places)],
            numbers[len(places) :],
        )
        if not capturing:
            self._shape = made
        return made

    def _on_device(self, numbers: Sequence[int]) -> Int64[Tensor, "numbers"]:
        """Numbers on the device; those of the call before need not go there again."""
        last, there = self._places
        if last == numbers and there is not None and not self.tables.is_capturing():
            return there
        there = numbers_on(numbers, self.store.device)
        if not self.tables.is_capturing():
            self._places = (list(numbers), there)
        return there


@dataclass(frozen=True, slots=True, eq=False)
class FeaturesRead:
    """What was read of one batch: where its rows are, and which outputs they went into."""

    group: GroupFeatures
    keys: TableKeys
    borders: tuple[int, ...]
    slots: Int32[Tensor, "n"]
    occurrences: Occurrences
    epochs: object
    samples: int

    @property
    def features(self) -> tuple[Feature, ...]:
        """The features, in the order of the outputs."""
        return self.group.group.features

    @property
    def at(self) -> Lookup:
        """Where the rows were found, for updates that need the gradient of each id."""
        store, keys = self.group.store, self.keys
        rows = torch.empty(0, dtype=torch.float32, device=store.device)
        return Lookup(
            keys, rows, store.dims, self.group.tables.within(keys, self.slots), self.epochs
        )

    @property
    def learner(self) -> FeaturesRead:
        """Itself."""
        return self

    def ids_of(self, i: int) -> Int64[Tensor, "n"]:
        """The ids of feature `i`."""
        return self.keys.ids[self.borders[i] : self.borders[i + 1]]

    def key_gradients(self, i: int, grad: Tensor) -> Float32[Tensor, "n dim"]:
        """The gradient of each id of feature `i`."""
        alone: list[Tensor | None] = [None] * len(self.features)
        alone[i] = grad
        with self.group.tables.on_device():
            return spread(self.group.gradients(self, alone), self.borders[i], self.borders[i + 1])

    def learns(self, given: Sequence[Gradients], clip: float) -> bool:
        """One read, with a gradient of every feature."""
        return len(given) == 1 and given[0].are_whole and not clip

    def learn(self, given: Sequence[Gradients], *, clip: float, step: int, ts: int) -> None:
        """One optimizer step per id, in the slots where rows were found."""
        del clip
        tables = self.group.tables
        grads = self.group.gradients(self, given[0].grads)
        if tables.learn(self.keys, self.slots, self.epochs, grads, step=step, ts=ts):
            return
        with tables.on_device():  # a table left the group, or their rates differ
            flat = spread(grads, 0, len(self.keys.ids)).view(-1)
        self.group.store.apply_gradients(self.at, flat, step=step, ts=ts)


def _plain(grad: Tensor) -> Tensor:
    """A gradient as kernels read it: float32 at addresses and strides."""
    if grad.dtype is torch.float32 and grad.layout is torch.strided and not grad.is_neg():
        return grad
    return grad.to_dense().resolve_neg().float()
