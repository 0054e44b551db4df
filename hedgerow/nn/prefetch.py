"""Looks up the rows of the next batches while the model works on the current one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from types import TracebackType
from typing import Any, Generic, TypeVar

from torch import nn

from ..core import checks
from ..core.errors import InputError, StateError
from ..core.id_batch import IdBatch
from ..sharding.pipeline import Item, Prefetch
from ..tables.module_store import FeatureKeys, TableFeature
from ..tables.store import Lookup
from .embedding_modules import EmbeddingModule, collections_of

B = TypeVar("B")


def prefetch(model: nn.Module, batches: Iterable[B], *, depth: int = 1) -> PrefetchedBatches[B]:
    """Returns the batches one by one, and looks up the rows of up to `depth` later ones meanwhile.

    A second thread takes later batches and looks up the features that the model read of the batch
    before. These lookups, including their exchange over ranks, run while the model works. The rows
    of a batch can therefore lack the updates of up to `depth` steps. `counters` of the result count
    "stale_steps", the sum of these delays over all batches, and the calls of the model that were
    "read_ahead" and "read_now". Depth 0 turns prefetching off.

    For tables that are cached on a device, only rows that the cache lacks are read in advance. They
    enter the cache when the model is called. Such calls are counted as "brought", and their rows
    lack no update.

    A batch is an `IdBatch` or contains some, as the batches of `hr.data`. The model must be called
    with the same `IdBatch` objects. All ranks of a distributed model must prefetch in the same way.

    >>> import hedgerow as hr
    >>> bags = hr.EmbeddingBags([hr.Table("user", 2)], optimizer=hr.Sgd(lr=1.0))
    >>> batches = [hr.IdBatch.from_lists({"user": [[user]]}) for user in range(5)]
    >>> ahead = hr.prefetch(bags, batches)
    >>> for batch in ahead:
    ...     bags(batch)["user"].sum().backward()
    >>> bags.store.size(), ahead.counters.read("read_now"), ahead.counters.read("read_ahead")
    (5, 2, 3)
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"prefetch for a {type(model).__name__}; pass an nn.Module.")
    return PrefetchedBatches(collections_of(model), batches, checks.count("depth", depth))


@dataclass(frozen=True, slots=True)
class _Call:
    """A read by a model: the module, the position of the `IdBatch` in the batch, the features."""

    collection: int
    place: int
    features: tuple[TableFeature, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _PrefetchedBatch(Generic[B]):
    """A batch, its ids, the lookups made for it, and the keys that caches must prefetch."""

    batch: B
    ids: list[IdBatch]
    found: dict[_Call, Lookup]
    asked: dict[_Call, FeatureKeys]
    told: set[_Call] = field(default_factory=set)  # calls of `asked` that caches have received


class PrefetchedBatches(Generic[B]):
    """Batches whose rows are looked up in advance. Not thread-safe.

    Iterate over it once, or call `close`. While it is open, all reads of the model run in its
    thread, except reads through caches on a device. The reads of a group of ranks thus keep their
    order.
    """

    def __init__(
        self, collections: list[EmbeddingModule], batches: Iterable[B], depth: int
    ) -> None:
        for one in collections:
            if one.ahead is not None:
                raise StateError("the model prefetches other batches; close that prefetch first.")
        self._collections = collections
        self._calls: list[_Call] = []  # of the model on the batch that was taken last
        self._here: _PrefetchedBatch[B] | None = None
        source = (Item(batch, self._step()) for batch in batches)
        self._queue = Prefetch(source, partial(self._look_up, (), ()), depth)
        self.counters = self._queue.counters
        for one in collections:
            one.ahead = self

    def __enter__(self) -> PrefetchedBatches[B]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[B]:
        try:
            while (ready := self._take()) is not None:
                yield ready.batch
        finally:
            self.close()

    def close(self) -> None:
        """Ends the thread after its present work. The model then reads without prefetching."""
        self._queue.close()
        self._here = None
        for one in self._collections:
            one.ahead = None

    def found(self, collection: EmbeddingModule, batch: IdBatch, keys: FeatureKeys) -> Lookup:
        """Returns the rows of a call, which were prefetched or are read now."""
        number, here = self._collections.index(collection), self._here
        place = _place(batch, here.ids) if here is not None and collection.training else None
        if here is not None and place is not None:
            call = _Call(number, place, keys.features)
            self._calls.append(call)
            if call in here.found:
                self.counters.add("read_ahead")
                return here.found.pop(call)
            if call in here.asked:
                self.counters.add("brought")
                self._tell_caches()
                own = here.asked.pop(call)  # the same tensor of ids that the caches received
                return collection.look_up(own, training=True, step=collection.updates.step)
        self.counters.add("read_now")
        training, step = collection.training, collection.updates.step

        def look_up() -> Lookup:
            failed = self._queue.failed
            if failed is not None and collection.ranks.count > 1:
                raise failed  # other ranks would mistake this lookup for the one that failed
            return collection.look_up(keys, training=training, step=step)

        return self._queue.in_turn(look_up)

    def _take(self) -> _PrefetchedBatch[B] | None:
        # The calls are fixed when the work starts. If each thread read them later, ranks could see
        # different calls and wait for each other forever.
        steps = tuple(one.updates.step for one in self._collections)
        calls = tuple(dict.fromkeys(self._calls)) if self._queue.capacity else ()
        self._queue.work = partial(self._look_up, calls, steps)
        self._calls, self._here = [], None
        item = self._queue.take(self._step())
        self._here = None if item is None else item.value
        self._tell_caches()
        return self._here

    def _tell_caches(self) -> None:
        """Sends the keys of batches that are ready to the caches. Runs in the training thread."""
        for item in self._queue.ready():
            ready = item.value
            for call, keys in ready.asked.items():
                store = self._collections[call.collection].store
                if call not in ready.told:
                    ready.told.add(call)
                    store.prefetch(keys.keys)

    def _look_up(
        self, calls: tuple[_Call, ...], steps: tuple[int, ...], item: Item[B]
    ) -> _PrefetchedBatch[B]:
        """Looks up the rows of a batch; runs in the second thread."""
        ids = id_batches(item.value)
        found: dict[_Call, Lookup] = {}
        asked: dict[_Call, FeatureKeys] = {}
        for call in calls:
            one, step = self._collections[call.collection], steps[call.collection]
            keys = FeatureKeys.of(ids[call.place], call.features, len(one.store.names))
            if one.store.reads_ahead:
                asked[call] = keys
            else:
                found[call] = one.look_up(keys, training=True, step=step)
        return _PrefetchedBatch(item.value, ids, found, asked)

    def _step(self) -> int:
        return max((one.updates.step for one in self._collections), default=0)


def id_batches(batch: Any) -> list[IdBatch]:
    """Returns all `IdBatch` objects of a batch, also those in lists, mappings and dataclasses."""
    if isinstance(batch, IdBatch):
        return [batch]
    if isinstance(batch, Mapping):
        parts: Iterable[Any] = batch.values()
    elif isinstance(batch, list | tuple):
        parts = batch
    elif is_dataclass(batch):
        parts = [getattr(batch, field.name) for field in fields(batch)]
    else:
        return []
    return [found for part in parts for found in id_batches(part)]


def _place(batch: IdBatch, among: list[IdBatch]) -> int | None:
    return next((place for place, one in enumerate(among) if one is batch), None)
