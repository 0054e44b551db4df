"""Looks up the rows of the next batches while the model works on this one."""

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
    """The batches, one after the other, each with its rows on the way up to `depth` before.

    Another thread takes the next batches and looks up what the model asked for of the batch before
    them: lookups and their journey over ranks take place while the model works. The rows of a batch
    then lack the updates of up to `depth` steps: `counters` of the result tell the "stale_steps" of
    all batches together, and how many calls of the model were "read_ahead" and "read_now". Depth 0
    is off.

    Of tables that are cached on a device only what the caches lack is read before, and comes when
    the model is called: those calls are "brought", and their rows lack nothing.

    A batch is an `IdBatch` or holds some, as those of `hr.data`; the model is called with the very
    same. Every rank of a distributed model does alike.

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
    """What a model asked for: of which collection, with which of a batch's ids, which features."""

    collection: int
    place: int
    features: tuple[TableFeature, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _PrefetchedBatch(Generic[B]):
    """A batch, its ids, what was looked up of them, and what caches are to be told of."""

    batch: B
    ids: list[IdBatch]
    found: dict[_Call, Lookup]
    asked: dict[_Call, FeatureKeys]
    told: set[_Call] = field(default_factory=set)  # of those


class PrefetchedBatches(Generic[B]):
    """Batches whose rows come before they are asked for. Single-owner; iterate once, or `close`.

    While it is open, all reads of the model go through its thread: those of one group of ranks may
    never pass each other.
    """

    def __init__(
        self, collections: list[EmbeddingModule], batches: Iterable[B], depth: int
    ) -> None:
        for one in collections:
            if one.ahead is not None:
                raise StateError("the model reads ahead for other batches; close that first.")
        self._collections = collections
        self._calls: list[_Call] = []  # of the batch that was taken last
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
        """Ends the thread, once what it does is done; the model reads by itself again."""
        self._queue.close()
        self._here = None
        for one in self._collections:
            one.ahead = None

    def found(self, collection: EmbeddingModule, batch: IdBatch, keys: FeatureKeys) -> Lookup:
        """The rows of a call, read ahead or now."""
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
                own = here.asked.pop(call)  # the very ids that the caches were told of
                return collection.look_up(own, training=True, step=collection.updates.step)
        self.counters.add("read_now")
        training, step = collection.training, collection.updates.step

        def look_up() -> Lookup:
            failed = self._queue.failed
            if failed is not None and collection.ranks.count > 1:
                raise failed  # a lookup of its batch is missing: others would take this one for it
            return collection.look_up(keys, training=training, step=step)

        return self._queue.in_turn(look_up)

    def _take(self) -> _PrefetchedBatch[B] | None:
        # What is started now is told now what to look up: ranks that asked their own thread later
        # could find different calls, and wait for each other for ever.
        steps = tuple(one.updates.step for one in self._collections)
        calls = tuple(dict.fromkeys(self._calls)) if self._queue.capacity else ()
        self._queue.work = partial(self._look_up, calls, steps)
        self._calls, self._here = [], None
        item = self._queue.take(self._step())
        self._here = None if item is None else item.value
        self._tell_caches()
        return self._here

    def _tell_caches(self) -> None:
        """Of batches that are ready; in the thread that trains, whose the caches are."""
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
        """In the other thread."""
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
    """All ids of a batch, in lists, mappings and dataclasses, too."""
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
