"""The interface between a module and its store of rows, and the bags that a module reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol, Self

import torch
from torch import Tensor

from ..core.checks import CPU, unknown
from ..core.clock import Clock
from ..core.errors import StateError
from ..core.id_batch import IdBatch
from ..core.shapes import Float32, Int64
from .config import TableConfig
from .local_table import TableStats
from .multi.several_tables import not_copied, stays
from .store import PLAIN, Lookup, Missing, SummedGradients, TableKeys, Trainable, UpdatePolicy

if TYPE_CHECKING:
    from .host import HostTable


Pooling = str | tuple[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class TableFeature:
    """A feature of a batch: the number of its table, and how its bags are pooled."""

    name: str
    table: int
    pooling: Pooling


@dataclass(frozen=True, slots=True, eq=False)
class FeatureGroup:
    """Features that are read together, for batches with the same feature names."""

    features: tuple[TableFeature, ...]  # ordered by table
    places: tuple[int, ...]  # the position of each feature in the batch
    order: tuple[int, ...]  # the positions in `features`, in the caller's order

    @staticmethod
    def of(
        names: tuple[str, ...], features: Sequence[TableFeature], wanted: Sequence[str]
    ) -> FeatureGroup:
        """Returns the group of the `wanted` features, for batches with these names.

        >>> features = [TableFeature("item", 0, "sum"), TableFeature("user", 1, "sum")]
        >>> group = FeatureGroup.of(("user", "age", "item"), features, ["user", "item"])
        >>> group.places, group.order
        ((2, 0), (1, 0))
        """
        chosen = tuple(feature for feature in features if feature.name in wanted)
        found = [feature.name for feature in chosen]
        return FeatureGroup(
            chosen,
            tuple(names.index(name) for name in found),
            tuple(found.index(name) for name in wanted),
        )


@dataclass(frozen=True, slots=True, eq=False)
class FeatureBags:
    """The bags of a group of features in one batch."""

    batch: IdBatch
    group: FeatureGroup

    def ids_of(self, i: int) -> Int64[Tensor, "n"]:
        """Returns the ids of feature `i`, bag after bag."""
        borders, place = self.batch.borders(), self.group.places[i]
        return self.batch.values[borders[place] : borders[place + 1]]

    def keys(self, tables: int) -> FeatureKeys:
        """Returns the ids as keys of a store with `tables` tables."""
        return FeatureKeys.of(self.batch, self.group.features, tables, self.group.places)


@dataclass(frozen=True, slots=True, eq=False)
class FeatureKeys:
    """The keys of one batch, ordered by table, and inside a table by feature."""

    keys: TableKeys
    features: tuple[TableFeature, ...]  # in the order of their ids
    borders: tuple[int, ...]  # the offset of each feature in keys.ids, and the end

    @staticmethod
    def of(
        batch: IdBatch,
        features: Sequence[TableFeature],
        tables: int,
        places: Sequence[int] | None = None,
    ) -> FeatureKeys:
        """Returns the keys of these features of a batch; `places` are their positions, if known."""
        borders = batch.borders()
        if places is None:
            for feature in features:
                if feature.name not in batch.names:
                    unknown("feature", feature.name, batch.names)
            places = [batch.names.index(feature.name) for feature in features]
        at, of_table = [0], [0] * tables
        for feature, place in zip(features, places, strict=True):
            size = borders[place + 1] - borders[place]
            at.append(at[-1] + size)
            of_table[feature.table] += size
        ids = batch.values
        if tuple(places) != tuple(range(len(batch.names))):
            parts = list[Tensor]()
            for place in places:
                parts.append(batch.values[borders[place] : borders[place + 1]])
            ids = torch.cat(parts)
        keys = TableKeys(ids, (0, *accumulate(of_table)))
        return FeatureKeys(keys, tuple(features), tuple(at))

    def rows(self, found: Lookup) -> tuple[Float32[Tensor, "n dim"], ...]:
        """Returns the rows of each feature, without a copy."""
        parts, start = [], 0
        for feature, first, end in zip(self.features, self.borders, self.borders[1:], strict=False):
            n, dim = end - first, found.dims[feature.table]
            parts.append(found.rows[start : start + n * dim].view(n, dim))
            start += n * dim
        return tuple(parts)

    def ids_of(self, i: int) -> Int64[Tensor, "n"]:
        """Returns the ids of feature `i`."""
        return self.keys.ids[self.borders[i] : self.borders[i + 1]]


class ReadRecord(Protocol):
    """What a module read for a batch, as needed for an update.

    There is one gradient per output and feature: of the pooled vectors, or of the rows of all ids.
    """

    @property
    def features(self) -> tuple[TableFeature, ...]:
        """The features, in the order of the outputs."""
        ...

    @property
    def at(self) -> Lookup:
        """Where the rows of all ids were found."""
        ...

    @property
    def learner(self) -> Learner | None:
        """What applies gradients of vectors; None if the store applies gradients of ids."""
        ...

    def ids_of(self, i: int) -> Int64[Tensor, "n"]:
        """Returns the ids of feature `i`."""
        ...

    def key_gradients(self, i: int, grad: Tensor) -> Float32[Tensor, "n dim"]:
        """Returns the gradient of each id of feature `i`."""
        ...


class Learner(Protocol):
    """Applies the gradients of vectors without expanding them to one gradient per id."""

    def learns(self, given: Sequence[Gradients], clip: float) -> bool:
        """Returns whether one `learn` call can apply all of these without a new search."""
        ...

    def learn(self, given: Sequence[Gradients], *, clip: float, step: int, ts: int) -> None:
        """Applies one optimizer step per id that has a gradient, at the slots found by the reads.

        With a `clip` above 0, the summed gradient of each row is scaled down to that norm if it is
        longer.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Gradients:
    """The gradients of one read, by feature; at least one feature has a gradient."""

    read: ReadRecord
    grads: tuple[Tensor | None, ...]

    @property
    def are_whole(self) -> bool:
        """Whether all features have a gradient."""
        # `None in` would compare each tensor with None, which takes torch 20 us.
        return all(grad is not None for grad in self.grads)

    @property
    def at(self) -> Lookup:
        """Where the rows of the ids that have a gradient were found."""
        at = self.read.at
        start, places, sizes = 0, list[Tensor](), [0] * at.keys.tables
        for i, (feature, grad) in enumerate(zip(self.read.features, self.grads, strict=True)):
            stop = start + len(self.read.ids_of(i))
            if grad is not None:
                places.append(torch.arange(start, stop, device=at.keys.ids.device))
                sizes[feature.table] += stop - start
            start = stop
        return at.part(torch.cat(places), (0, *accumulate(sizes)))


class BagsReader(Protocol):
    """Reads and pools the bags of a group of features."""

    def read(
        self, bags: FeatureBags, *, training: bool, step: int, keep: bool
    ) -> tuple[tuple[Tensor, ...], ReadRecord | None]:
        """Returns the outputs of all features and, with `keep`, what an update of them needs."""
        ...


class ModuleStore(Trainable, Protocol):
    """The rows of all tables of one module: in this process, over ranks, or on servers.

    One builder per placement makes the store. Other code uses this interface only.
    """

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tables, in byte order."""
        ...

    @property
    def dims(self) -> tuple[int, ...]:
        """The number of columns of each table."""
        ...

    @property
    def device(self) -> torch.device:
        """The device of the keys and rows of a call."""
        ...

    @property
    def tables(self) -> Sequence[HostTable]:
        """The tables or shards that this process holds; empty for tables on servers."""
        ...

    # ---- the calls of a step

    def bags_reader(self, bags: FeatureBags) -> BagsReader | None:
        """Returns what reads these bags pooled; None if the module must read their rows instead."""
        ...

    def lookup(
        self, keys: TableKeys, *, missing: Missing = "zeros", step: int | None = None
    ) -> Lookup:
        """Returns the rows of `keys`."""
        ...

    def take_part(self, *, step: int, ts: int, policy: UpdatePolicy = PLAIN) -> bool:
        """Takes part in an update without a gradient; returns whether another process has one.

        Over ranks, every update is a collective, and this process may own rows that other ranks
        have gradients for. Other stores do nothing.
        """
        ...

    def summed_gradients(
        self,
        at: TableKeys | Lookup,
        grads: Tensor,
        *,
        counts: Tensor | None = None,
        given: bool = True,
    ) -> SummedGradients:
        """Returns the sum of the gradients of each key; an update can be made at the result.

        `given` says that this process has a gradient, even one with no rows.
        """
        ...

    @property
    def reads_ahead(self) -> bool:
        """Whether `prefetch` does something."""
        ...

    def prefetch(self, keys: TableKeys) -> None:
        """Announces keys of a later lookup for training. It changes no result."""
        ...

    # ---- size and statistics

    def size(self) -> int:
        """Returns the number of rows of all tables."""
        ...

    def max_ts(self) -> int:
        """Returns the largest `ts` of all writes to any table."""
        ...

    def row_counts(self) -> dict[str, int]:
        """Returns the number of rows of each table: of this process, or of all servers."""
        ...

    def stats_by_table(self) -> dict[str, TableStats]:
        """Returns the statistics of each table: of this process, or of all servers."""
        ...

    # ---- moves and copies of the module

    def configs_to_move(self, where: object) -> Mapping[str, TableConfig]:
        """Returns the tables' configs, to build them at `where`; raises if they cannot move."""
        ...

    def moves_to(self, device: torch.device) -> bool:
        """Returns whether tables move with a module to `device`.

        Raises if the module cannot move there.
        """
        ...

    def emptied(self, clock: Clock) -> Self:
        """Returns a store of the same tables without rows, for a copy of the module, or raises."""
        ...

    @property
    def programs_read(self) -> bool:
        """Whether exported programs, which run in host memory, can read the rows."""
        ...


class DistributedStore:
    """The common part of stores whose rows are spread over ranks or servers.

    Keys and rows of a call are on `device`.
    """

    device: torch.device = CPU

    @property
    def programs_read(self) -> bool:
        """Whether exported programs can read the rows: yes, as modules do."""
        return True

    def take_part(self, *, step: int, ts: int, policy: UpdatePolicy = PLAIN) -> bool:
        """Returns False: no other process updates these rows together with this one."""
        del step, ts, policy
        return False

    @property
    def reads_ahead(self) -> bool:
        """Whether `prefetch` does something: no."""
        return False

    def prefetch(self, keys: TableKeys) -> None:
        """Does nothing: `lookup` requests the rows."""
        del keys

    def configs_to_move(self, where: object) -> dict[str, TableConfig]:
        """Raises: the rows are spread already."""
        del where
        raise StateError(
            "the model is distributed already; move it to a device before you distribute it."
        )

    def moves_to(self, device: torch.device) -> bool:
        """Returns False, or raises: the tables do not move."""
        return stays(self.device, device)

    def emptied(self, clock: Clock) -> Self:
        """Raises: this process does not hold all rows."""
        del clock
        raise not_copied()
