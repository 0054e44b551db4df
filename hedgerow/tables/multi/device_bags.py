"""Reads and pools the features of a batch from device tables, and applies their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from ...core.shapes import Float32, Int64
from ...kernels import pool
from ...kernels.output_gradients import Occurrences, OutputGradients
from ...kernels.pool_features import Features, spread
from ...ops.segment import ragged_rows
from ..device import DeviceTable
from ..device_slots import MAX_IDS
from ..module_store import (
    FeatureBags,
    FeatureGroup,
    FeatureKeys,
    Gradients,
    ModuleStore,
    TableFeature,
)
from ..store import Lookup, Missing, TableKeys
from ..transfer import numbers_on

if TYPE_CHECKING:
    from .device_group import DeviceGroup
    from .device_tables import DeviceTables


POOLED = ("sum", "mean", "sqrtn")  # poolings that the kernel supports


@dataclass(frozen=True, slots=True)
class DeviceReader:
    """Pools bags over tables on a device, table by table."""

    store: DeviceTables

    def read(
        self, bags: FeatureBags, *, training: bool, step: int, keep: bool
    ) -> tuple[tuple[Tensor, ...], DeviceBags | None]:
        """Returns the vectors of each feature, and with `keep` the read for an update."""
        found = DeviceBags.of(self.store, bags)
        return found.pooled("training" if training else "zeros"), found if keep else None


@dataclass(frozen=True, slots=True, eq=False)
class DeviceBags:
    """The bags of a batch: the slots of their rows, and their offsets."""

    store: DeviceTables
    keys: FeatureKeys
    found: Lookup
    splits: tuple[Int64[Tensor, "samples+1"], ...]  # per feature: the offsets of the bags
    weights: tuple[Float32[Tensor, "n"] | None, ...]

    @staticmethod
    def of(store: DeviceTables, bags: FeatureBags) -> DeviceBags:
        """Returns the bags of a group of features."""
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
        """Returns one vector per sample and feature."""
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
    def features(self) -> tuple[TableFeature, ...]:
        """The features, in the order of the outputs."""
        return self.keys.features

    @property
    def at(self) -> Lookup:
        """Where the rows were found."""
        return self.found

    @property
    def learner(self) -> None:
        """None: the store applies the gradients of ids, at the slots of the lookup."""
        return None

    def ids_of(self, i: int) -> Int64[Tensor, "n"]:
        """Returns the ids of feature `i`."""
        return self.keys.ids_of(i)

    def key_gradients(self, i: int, grad: Tensor) -> Float32[Tensor, "n dim"]:
        """Returns the gradient of each id of feature `i`."""
        pooling, splits = self.features[i].pooling, self.splits[i]
        if pooling != "sum":
            count = splits.diff().clamp(min=1).unsqueeze(1).to(grad.dtype)
            grad = grad / (count if pooling == "mean" else count.sqrt())
        rows, weights = ragged_rows(splits, grad, len(self.ids_of(i))), self.weights[i]
        return rows.float() if weights is None else rows * weights.unsqueeze(1)


Outputs = tuple[Tensor, ...]
_MOST_GROUPS = 64  # groups of features that are kept


@dataclass(frozen=True, slots=True, eq=False)
class OutputRows:
    """The result of a kernel for all features: the output vectors one after the other."""

    vectors: Float32[Tensor, "vectors dim"]
    at: Occurrences
    found: Any  # the slots of the rows, in the reader's own form


@dataclass(frozen=True, slots=True, eq=False)
class BagsOfFeatures:
    """The bags of all features of a batch, in the form that `pool_features` takes."""

    offsets: Int64[Tensor, "names*samples+1"]
    shifts: Int64[Tensor, "F"]
    samples: int
    weights: Float32[Tensor, "n"] | None


class FeatureReader(Protocol):
    """Reads all features of a module from a group of alike tables, and updates the rows it read."""

    def rows_of_features(
        self,
        features: Features,
        keys: TableKeys,
        borders: Int64[Tensor, "F+1"],
        sizes: Sequence[int],
        *,
        training: bool,
        step: int,
    ) -> OutputRows:
        """Returns the rows of all ids; the ids of each feature lie between two `borders`."""
        ...

    def pooled_features(
        self,
        features: Features,
        keys: TableKeys,
        bags: BagsOfFeatures,
        *,
        training: bool,
        step: int,
    ) -> OutputRows:
        """Returns the vectors of all bags."""
        ...

    def lookup_of(self, keys: TableKeys, found: Any) -> Lookup:
        """Returns where a read found the rows, for an update with one gradient per id."""
        ...

    def learn(
        self, keys: TableKeys, found: Any, grads: OutputGradients, *, step: int, ts: int
    ) -> bool:
        """Applies one step to all tables at the found slots; False if they cannot share it."""
        ...


class KnownFeatures:
    """Caches what a store knows of each group of features. Single-owner."""

    def __init__(self, store: ModuleStore, tables: DeviceGroup, reader: FeatureReader) -> None:
        self._store, self._tables, self._reader = store, tables, reader
        self._known: dict[FeatureGroup, GroupFeatures] = {}
        self._captured = False

    def of(self, group: FeatureGroup) -> GroupFeatures:
        """Returns what is known of a group of features; it is cached."""
        # A captured graph reads the cached tensors at each replay.
        self._captured |= self._tables.is_capturing()
        known = self._known.get(group)
        if known is None:
            if len(self._known) >= _MOST_GROUPS and not self._captured:
                self._known.clear()
            known = self._known[group] = GroupFeatures(
                self._store, self._tables, self._reader, group
            )
        return known


@dataclass(frozen=True, slots=True, eq=False)
class _Shape:
    """What follows from the sizes of a batch; cached, because most batches have the same sizes."""

    batch_borders: tuple[int, ...]
    splits: tuple[int, ...]  # the offsets of the tables
    borders: tuple[int, ...]  # the offsets of the features in the keys
    in_order: bool  # whether the ids of the batch are the keys, unchanged
    shifts: Int64[Tensor, "F"]  # from the positions of ids in the batch to those in the keys
    sizes: list[int]  # the number of ids per feature
    cuts: Int64[Tensor, "F+1"]  # `borders` on the device


class GroupFeatures:
    """Reads and updates one group of features over a whole group of alike tables. Single-owner.

    It keeps what does not change from step to step.
    """

    def __init__(
        self, store: ModuleStore, tables: DeviceGroup, reader: FeatureReader, group: FeatureGroup
    ) -> None:
        self.store, self.tables, self.reader, self.group = store, tables, reader, group
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

    def takes(self, bags: FeatureBags) -> bool:
        """Returns whether it can read this batch; kernels count in 32 bits."""
        batch, weights = bags.batch, bags.batch.weights
        plain = weights is None or (weights.is_contiguous() and not weights.requires_grad)
        if not plain and not self.unpooled:
            return False
        if not batch.values.is_contiguous() or not batch.offsets.is_contiguous():
            return False
        if batch.values.device != self.store.device:  # the table-by-table path raises the error
            return False
        room = max(batch.values.shape[0], batch.samples * max(self.features.fans))
        return room * len(self.group.features) < MAX_IDS

    def read(
        self, bags: FeatureBags, *, training: bool, step: int, keep: bool
    ) -> tuple[Outputs, FeaturesRead | None]:
        """Returns the outputs of all features, and with `keep` the read for an update."""
        batch, shape = bags.batch, self._shape_of(bags)
        ids, sizes = batch.values, shape.sizes
        if not shape.in_order:
            ids = torch.cat([bags.ids_of(i) for i in range(len(sizes))])
        keys = TableKeys(ids, shape.splits)
        single = not self._firsts and batch.weights is None and batch.has_one_id_each()
        if self.unpooled or single:
            made = self.reader.rows_of_features(
                self.features, keys, shape.cuts, sizes, training=training, step=step
            )
        else:
            sizes = [batch.samples * fan for fan in self.features.fans]
            made = self.reader.pooled_features(
                self.features, keys, self._bags(bags, shape), training=training, step=step
            )
        # Outputs that are not views of one another: autograd allows in-place changes of such
        # outputs.
        outs = torch.unsafe_split_with_sizes(made.vectors, sizes)
        if self._firsts:
            for out, feature in zip(outs, self.group.features, strict=True):
                if isinstance(feature.pooling, tuple):
                    out.resize_(batch.samples, feature.pooling[1], out.shape[1])
        if not keep:
            return tuple(outs), None
        read = FeaturesRead(self, keys, shape.borders, made.found, made.at, batch.samples)
        return tuple(outs), read

    def gradients(self, read: FeaturesRead, grads: Sequence[Tensor | None]) -> OutputGradients:
        """Returns the gradients of the outputs of a read, without copying them."""
        firsts = [first if first < 0 else first * read.samples for first in self.features.largest]
        plain = [None if grad is None else _plain(grad) for grad in grads]
        n, dim = len(read.keys.ids), self.store.dims[0]
        return OutputGradients.of(plain, read.occurrences, n, dim, firsts, self._on_device)

    # ---- helpers

    def _bags(self, bags: FeatureBags, shape: _Shape) -> BagsOfFeatures:
        batch, weights = bags.batch, bags.batch.weights
        if weights is not None and not shape.in_order:
            where = [(batch.borders()[p], batch.borders()[p + 1]) for p in self.group.places]
            weights = torch.cat([weights[start:stop] for start, stop in where])
        return BagsOfFeatures(batch.offsets, shape.shifts, batch.samples, weights)

    def _shape_of(self, bags: FeatureBags) -> _Shape:
        batch_borders, known = tuple(bags.batch.borders()), self._shape
        capturing = self.tables.is_capturing()  # a graph keeps its own
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
            sizes,
            numbers[len(places) :],
        )
        if not capturing:
            self._shape = made
        return made

    def _on_device(self, numbers: Sequence[int]) -> Int64[Tensor, "numbers"]:
        """Returns numbers on the device; reuses the tensor of the last call if they are equal."""
        last, there = self._places
        if last == numbers and there is not None and not self.tables.is_capturing():
            return there
        there = numbers_on(numbers, self.store.device)
        if not self.tables.is_capturing():
            self._places = (list(numbers), there)
        return there


@dataclass(frozen=True, slots=True, eq=False)
class FeaturesRead:
    """What was read for one batch: the slots of its rows, and the outputs that they went into."""

    group: GroupFeatures
    keys: TableKeys
    borders: tuple[int, ...]
    found: Any  # the slots of the rows, in the reader's own form
    occurrences: Occurrences
    samples: int

    @property
    def features(self) -> tuple[TableFeature, ...]:
        """The features, in the order of the outputs."""
        return self.group.group.features

    @property
    def at(self) -> Lookup:
        """Where the rows were found, for updates that need the gradient of each id."""
        return self.group.reader.lookup_of(self.keys, self.found)

    @property
    def learner(self) -> FeaturesRead:
        """This object: it applies its own gradients."""
        return self

    def ids_of(self, i: int) -> Int64[Tensor, "n"]:
        """Returns the ids of feature `i`."""
        return self.keys.ids[self.borders[i] : self.borders[i + 1]]

    def key_gradients(self, i: int, grad: Tensor) -> Float32[Tensor, "n dim"]:
        """Returns the gradient of each id of feature `i`."""
        alone: list[Tensor | None] = [None] * len(self.features)
        alone[i] = grad
        with self.group.tables.on_device():
            return spread(self.group.gradients(self, alone), self.borders[i], self.borders[i + 1])

    def learns(self, given: Sequence[Gradients], clip: float) -> bool:
        """Returns True for one read in which every feature has a gradient, without clipping."""
        return len(given) == 1 and given[0].are_whole and not clip

    def learn(self, given: Sequence[Gradients], *, clip: float, step: int, ts: int) -> None:
        """Applies one optimizer step per id, at the slots of the read."""
        del clip
        tables = self.group.tables
        grads = self.group.gradients(self, given[0].grads)
        if self.group.reader.learn(self.keys, self.found, grads, step=step, ts=ts):
            return
        with tables.on_device():  # a table has left the group, or the rates differ
            flat = spread(grads, 0, len(self.keys.ids)).view(-1)
        self.group.store.apply_gradients(self.at, flat, step=step, ts=ts)


def _plain(grad: Tensor) -> Tensor:
    """Returns the gradient as strided float32, which kernels read by address and strides."""
    if grad.dtype is torch.float32 and grad.layout is torch.strided and not grad.is_neg():
        return grad
    return grad.to_dense().resolve_neg().float()


def find_rows(table: DeviceTable, keys: TableKeys) -> Lookup:
    """Returns the slots of `keys` without rows, for `pool_bags` and for an update."""
    slots = table.find_slots(keys)
    nothing = torch.empty(0, dtype=torch.float32, device=table.device)
    return Lookup(keys, nothing, (table.config.dim,), slots, table.epoch)


def pool_bags(
    table: DeviceTable,
    ids: Int64[Tensor, "n"],
    slots: Int64[Tensor, "n"],
    splits: Int64[Tensor, "bags+1"],
    pooling: str,
    *,
    weights: Float32[Tensor, "n"] | None = None,
    missing: Missing = "zeros",
) -> Float32[Tensor, "bags dim"]:
    """Returns one vector per bag of found ids; `pooling` is "sum", "mean" or "sqrtn".

    An absent id counts with the row that `DeviceTable.lookup` would return for it.
    """
    born = missing == "initializer" or (missing == "training" and table.config.admit is None)
    with table.on_device():
        return pool.pool(
            *(table.arrays, ids, slots, splits, pooling, weights),
            table.parts if born else (),
        )
