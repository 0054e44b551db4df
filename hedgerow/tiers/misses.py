"""Finds keys that miss on the device, and reads their rows before or during lookups."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..core.ids import distinct_ids
from ..core.shapes import Bool, Int32, Int64
from ..kernels.incoming_rows import IncomingRows
from ..tables.host import read_several
from ..tables.multi.device_group import DeviceGroup
from ..tables.store import TableKeys
from ..tables.transfer import host_room, to_device, to_host
from .caching import CachingTable
from .residency_map import Ids

if TYPE_CHECKING:
    from ..kernels.incoming_rows import MissList


_WORD = 8  # bytes
_LEAST = 256  # the smallest size of a list, in keys per table


@dataclass(frozen=True, slots=True, eq=False)
class Misses:
    """The keys of a call that are not resident on the device, table after table."""

    ids: Int64[Tensor, "m"]
    splits: tuple[int, ...]
    on_device: Int64[Tensor, "m"]  # the same ids
    at: Int64[Tensor, "m"]  # their positions in the call, on the device

    @staticmethod
    def of(keys: TableKeys, slots: Int64[Tensor, "n"]) -> Misses:
        """Returns the keys whose slot is -1. Waits for the device."""
        at = (slots < 0).nonzero()[:, 0]
        on_device = keys.ids[at]
        ids, where = to_host(on_device, at)
        cuts = np.searchsorted(where.numpy(), np.array(keys.splits))
        return Misses(ids, tuple(cuts.tolist()), on_device, at)

    def shares(self) -> Iterator[tuple[int, slice]]:
        """Yields the number of each table that has misses, and the slice of its misses."""
        for k, (start, stop) in enumerate(pairwise(self.splits)):
            if start < stop:
                yield k, slice(start, stop)

    def counts(self, which: Bool[Tensor, "m"]) -> list[int]:
        """Returns how many misses of each table are selected by a mask in host memory."""
        flags = which.numpy()
        return [int(np.count_nonzero(flags[a:b])) for a, b in pairwise(self.splits)]


class HostReadback:
    """Numbers that are being copied from the device to the host. Reading them waits for the copy.

    The first `counts` numbers are counts; by default all are. They are copied into `here` if given.
    """

    def __init__(
        self,
        there: Int64[Tensor, "n"],
        counts: int | None = None,
        here: Int64[Tensor, "n"] | None = None,
    ) -> None:
        device = there.device
        self._here = host_room(tuple(there.shape), there.dtype, device) if here is None else here
        self._here.copy_(there, non_blocking=True)
        self._counts = there.shape[0] if counts is None else counts
        self._event: torch.Event | torch.cuda.Event | None = None
        if device.type == "cuda":
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(device))

    @cached_property
    def counts(self) -> list[int]:
        """The counts."""
        self.wait()
        counts = self._here.numpy()[: self._counts].tolist()
        if self._counts == self._here.shape[0]:  # no more to read: `here` may be part of a block
            self._here = torch.empty(0, dtype=torch.int64)
        return counts

    def others(self) -> np.ndarray:
        """Returns the numbers after the counts."""
        self.wait()
        return self._here.numpy()[self._counts :]

    def is_there(self) -> bool:
        """Returns whether a read would not wait."""
        return self._event is None or self._event.query()

    def wait(self) -> None:
        """Waits until the numbers are on the host."""
        if self._event is not None:
            self._event.synchronize()


@dataclass(frozen=True, slots=True, eq=False)
class Residency:
    """The slots of the keys of a call, within their tables; -1 = not resident on the device."""

    slots: Int64[Tensor, "n"]
    epoch: tuple[object, ...]  # of the tables' rows: if it differs, rows have moved
    readback: HostReadback  # the number of misses; for caches by table, with a list of them
    since: int = 0  # for caches: the time of the newest use when the misses were not cached
    tried: bool = False  # whether the misses that could be fetched were fetched already
    came: bool = False  # whether all missing rows were fetched, except where buckets overflow
    misses: Misses | None = None  # set when they are first needed
    listing: MissList | None = None  # for caches

    def miss_count(self) -> int:
        """Returns how many keys are not on the device. Waits for the count."""
        return sum(self.readback.counts)

    def of(self, slots: Int64[Tensor, "m"]) -> Residency:
        """Returns the residency of some of the keys, each of which occurs once."""
        return replace(self, slots=slots, misses=None, listing=None)

    def misses_of(self, keys: TableKeys) -> Misses:
        """Returns the keys that are not on the device. Waits for the device the first time."""
        return self.misses or Misses.of(keys, self.slots)


class ListRoom:
    """The size of a list of misses: about twice the recent misses of a table. Single-owner.

    >>> import torch
    >>> room, keys = ListRoom(2), TableKeys(torch.arange(10_000), (0, 5000, 10_000))
    >>> room.lacked([1000, 7])
    >>> [room.of(keys) for _ in range(4)]
    [2000, 1000, 500, 256]
    """

    def __init__(self, tables: int) -> None:
        self._tables, self.rows = tables, _LEAST

    def of(self, keys: TableKeys) -> int:
        """Returns the size per table: no more than the keys of the call, or the least size."""
        room = min(self.rows, max(_LEAST, keys.splits[-1] // self._tables))
        self.rows = max(_LEAST, self.rows // 2)
        return room

    def lacked(self, counts: Sequence[int]) -> None:
        """Reports how many misses each table had, since a list that is too small is made again."""
        self.rows = max(self.rows, 2 * max(counts))


def listed(ids: Ids, counts: Sequence[int], room: int) -> list[Ids]:
    """Returns the ids of each table in a list with `room` ids per table.

    >>> [part.tolist() for part in listed(np.arange(6), [1, 5], 3)]
    [[0], [3, 4, 5]]
    """
    return [ids[k * room : k * room + min(n, room)] for k, n in enumerate(counts)]


class MissRead:
    """A read of the rows of some keys of each table from the slow stores, without a lock.

    Writes behind the caches are logged from the creation of this object until `close`. The keys
    were not cached at the time `since`; 0 = unknown.
    """

    def __init__(
        self, caches: Sequence[CachingTable], asked: Sequence[Ids], since: int = 0
    ) -> None:
        self._caches, self._since = caches, since
        self.device = caches[0].device
        self.splits = (0, *accumulate(map(len, asked)))
        layout = caches[0].layout
        shape = (len(caches), self.splits[-1], layout.dim, layout.state_floats)
        words = IncomingRows.words_of(*shape)
        memory = host_room((words + len(caches),), torch.int64, self.device)
        self._here = IncomingRows(memory, *shape)
        self.room_for_counts: Int64[Tensor, "K"] = memory[words:]
        whole, (ids, *_, found) = memory.numpy(), self._here.places
        whole[: len(self.splits)] = self.splits
        self.ids: Ids = whole[ids : ids + shape[1]]
        np.concatenate(asked, out=self.ids)
        # Which of the ids have a row that will be fetched.
        self.found: np.ndarray = whole[found:].view(np.bool_)[: shape[1]]
        self.counts = [0] * len(caches)  # upper bounds of the rows to fetch, by table
        self.have_rows = False  # whether all of the ids have a row that will be fetched
        self._there: IncomingRows | None = None
        self._arrived: torch.Event | torch.cuda.Event | None = None
        self._left_out = False  # whether some rows were excluded since the copy began
        self._log = caches[0].moves.log
        with caches[0].pair.write_lock:
            self._reader = self._log.begin(since)

    def close(self) -> None:
        """Ends the log of writes. A second call does nothing."""
        self._log.end(self._reader)

    def shares(self) -> Iterator[tuple[int, slice]]:
        """Yields the number of each table with ids, and the slice of its ids."""
        for k, (start, stop) in enumerate(pairwise(self.splits)):
            if start < stop:
                yield k, slice(start, stop)

    def read(self) -> None:
        """Reads the rows. Rows in flight to the slow stores are written there first."""
        # After a key was seen to be missing, its row may have been fetched, changed and chosen for
        # eviction. If it was chosen before the log began, its write-back has no log entry.
        self._caches[0].moves.write_back.land(self._since)
        if any(not table.moves.write_back.is_empty() for table in self._caches):
            for k, share in self.shares():
                # A row that is queued later is logged, so this reader does not use it.
                self._caches[k].moves.write_back.settle(torch.from_numpy(self.ids[share]))
        begin = self._here.words.data_ptr()
        ids, times, rows, states, found = (begin + _WORD * at for at in self._here.places)
        self.counts = read_several(
            [table.slow for table in self._caches],
            self.splits,
            ids_at=ids,
            found_at=found,
            rows_at=rows,
            states_at=states,
            times_at=times,
        )
        self.have_rows = sum(self.counts) == len(self.ids)

    def copy(self) -> None:
        """Starts to copy the rows to the device for later use, on the caller's stream.

        A kernel that needs the rows at once reads them in host memory instead. This takes half as
        long as a copy of memory that the processor has just written.
        """
        self._there = replace(self._here, words=to_device(self._here.words, self.device))
        if self.device.type == "cuda":
            self._arrived = torch.cuda.current_stream(self.device).record_event()

    def keep_unchanged(self) -> None:
        """Excludes rows that were written since the read began. The caller holds the write lock."""
        if not self._log.is_written(self._reader):
            return
        for k, share in self.shares():
            cache = self._caches[k].moves
            self._log.keep_unchanged(self._reader, cache, self.ids[share], self.found[share])
            # Equal ids of some tables were counted once.
            self.counts[k] = min(self.counts[k], int(np.count_nonzero(self.found[share])))
        self._left_out, self.have_rows = True, bool(self.found.all())

    def count_distinct(self, k: int) -> None:
        """Counts equal ids of a table once."""
        self.counts[k] = len(distinct_ids(self._ids_of(k)[self._found_of(k)]))

    def keep(self, k: int, rows: int) -> None:
        """Excludes all rows of a table but those of the first `rows` distinct ids."""
        ids, found = self._ids_of(k), self._found_of(k)
        _, first, which = np.unique(ids, return_index=True, return_inverse=True)
        coming = np.flatnonzero(found[first])
        coming = coming[np.argsort(first[coming])][:rows]
        kept = np.zeros(len(first), bool)
        kept[coming] = True
        found &= kept[which]
        self._left_out, self.have_rows = True, False
        self.counts[k] = len(coming)

    def coming(self) -> IncomingRows:
        """Returns the rows for a kernel on the caller's stream.

        The kernel may read them in pinned host memory. Torch does not know of that use and could
        give the memory away. So the caller copies counts from the device into the same memory
        (`room_for_counts`) after the kernel: torch keeps the memory until that copy is done.
        """
        if self._there is None:
            return self._here
        if self._arrived is not None:
            stream = torch.cuda.current_stream(self.device)
            stream.wait_event(self._arrived)
            self._there.words.record_stream(stream)  # it may be another stream
        if self._left_out:
            found = self._there.parts()[1]
            found.copy_(self._here.parts()[1], non_blocking=True)
        return self._there

    def _ids_of(self, k: int) -> Ids:
        return self.ids[self.splits[k] : self.splits[k + 1]]

    def _found_of(self, k: int) -> np.ndarray:
        return self.found[self.splits[k] : self.splits[k + 1]]


_Event = torch.Event | torch.cuda.Event | None
# Batches that wait for their lookups. More are not prefetched; after eight refusals in a row the
# waiting batches are discarded.
_MOST_BATCHES = 8


class CachePrefetcher:
    """Prefetches later batches for K caches, in the order of their lookups.

    One thread adds batches. Owns a lock for requests and lookups, which other threads also make.
    The caller never waits. `ask` makes the device list the misses of a batch, and marks its
    resident rows as used so that they are rarely evicted. Once the list is on the host, `go_on`
    starts a thread that reads the rows and copies them to the device. Both use a separate stream. A
    prefetch is a hint: the lookup of the batch checks which rows have been fetched or evicted in
    between.
    """

    def __init__(
        self,
        caches: Sequence[CachingTable],
        group: DeviceGroup,
        used: Int32[Tensor, "slots"],
    ) -> None:
        self._caches, self._group, self._used = caches, group, used
        self.device = caches[0].device
        self.batches: deque[PrefetchedKeys] = deque()
        self._refused = 0  # consecutive batches that were refused since the last lookup of one
        self._room, self._asking = ListRoom(len(caches)), Lock()
        self._thread: ThreadPoolExecutor | None = None
        self._stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None

    def __len__(self) -> int:
        return len(self.batches)

    def add(self, keys: TableKeys, whole: Int64[Tensor, "all"]) -> None:
        """Adds the keys of a group of tables. `whole` are all ids of the batch, looked up later."""
        if not len(whole):  # the address identifies a batch; all empty tensors have the same
            return
        if len(self.batches) >= _MOST_BATCHES:
            self._refused += 1
            if self._refused <= _MOST_BATCHES:  # the oldest batches are needed first
                return
            with self._asking:
                while self.batches:  # they are never looked up
                    self.batches.popleft().forget()
        self._refused = 0
        ready = None  # a later `ask` may run on another stream, which must wait for the ids
        if self.device.type == "cuda":
            ready = torch.cuda.current_stream(self.device).record_event()
        self.batches.append(PrefetchedKeys(keys, whole, ready))

    def ask(self) -> None:
        """Makes the device list the misses of batches that have no list yet.

        Call it after the kernels of a lookup, which would otherwise have to wait.
        """
        if not self.batches:
            return
        for one in tuple(self.batches):
            with self._asking:
                if one.request is not None or one.reading is not None:
                    continue
                try:
                    self._ask(one, self._room.of(one.keys))
                except Exception as error:  # raised by the lookup of the batch, not by this step
                    one.fail(error)

    def await_uses(self) -> None:
        """Makes the caller's stream wait until the rows that these batches use are marked."""
        for one in tuple(self.batches):
            if one.request is not None and isinstance(one.request.marked, torch.cuda.Event):
                torch.cuda.current_stream(self.device).wait_event(one.request.marked)

    def asked_since(self) -> int | None:
        """Returns the time of the first request whose reads are not logged yet, or None."""
        requests = (one.request for one in tuple(self.batches) if one.reading is None)
        return min((one.since for one in requests if one is not None), default=None)

    def go_on(self) -> None:
        """Starts to read the rows of the misses that the device has listed."""
        self.ask()
        for one in tuple(self.batches):
            if one.reading is None and one.request is not None and one.request.is_there():
                try:
                    if not self._ask_for_all(one):
                        self._read(one)
                except Exception as error:  # as in `ask`
                    one.fail(error)

    def take(self, whole: Int64[Tensor, "all"]) -> MissRead | None:
        """Returns the rows that were read for the batch with the same tensor of ids, or None.

        This batch is looked up now. Earlier batches are discarded.
        """
        one = self.pop(whole)
        if one is None:
            return None
        self._refused = 0
        late = one.reading is None or not one.reading.done()
        with self._asking:
            if one.request is None and one.reading is None:
                self._ask(one, self._room.of(one.keys))
        if one.reading is None:
            self._ask_for_all(one)
            self._read(one)
        assert one.reading is not None
        try:
            one.reading.result()
        except BaseException:
            one.forget()
            raise
        if one.rows is None:
            return None
        for k, share in one.rows.shares():
            counters, rows = self._caches[k].counters, share.stop - share.start
            counters.add("prefetches", rows)
            if late:
                counters.add("late_prefetches", rows)
        return one.rows

    # ---- stages

    def pop(self, whole: Int64[Tensor, "all"]) -> PrefetchedKeys | None:
        """Removes and returns the batch of these ids, if there is one. Discards earlier batches."""
        if not self.batches or not len(whole):
            return None
        where = whole.data_ptr()
        with self._asking:  # another thread may look up the same batch
            if all(one.whole.data_ptr() != where for one in tuple(self.batches)):
                return None
            while (one := self.batches.popleft()).whole.data_ptr() != where:
                one.forget()
        return one

    def _ask(self, one: PrefetchedKeys, room: int | None) -> None:
        """Makes the device list up to `room` misses of each table, or all."""
        now, keys = self._caches[0].moves.clock.now, one.keys
        with self._beside(one):
            if self._stream is not None:  # the caller may free the ids before they are read
                keys.ids.record_stream(self._stream)
            listing = self._group.absent(keys, self._used, now, room)
            marked = self._stream and self._stream.record_event()
            readback = HostReadback(listing.words, counts=2 * listing.tables)
            one.request = _Request(readback, room, now, marked)

    def _ask_for_all(self, one: PrefetchedKeys) -> bool:
        """Lists the misses again if the first list was too small. Returns whether it was.

        Waits for the first list.
        """
        assert one.request is not None
        counts, room = one.request.counts(), one.request.room
        self._room.lacked(counts)
        if room is None or max(counts) <= room:
            return False
        self._ask(one, None)
        return True

    def _read(self, one: PrefetchedKeys) -> None:
        """Makes the thread read the rows. Waits for the list."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="hedgerow prefetch")
        assert one.request is not None
        ids = one.request.ids(one.keys)
        if not any(map(len, ids)):
            one.reading = Future()
            one.reading.set_result(None)
            return
        rows = MissRead(self._caches, ids, one.request.since)
        try:
            one.reading = self._thread.submit(self._read_and_copy, rows)
        except BaseException:
            rows.close()
            raise
        one.rows = rows

    def _read_and_copy(self, rows: MissRead) -> None:
        """Reads the rows and copies them to the device. Runs in the thread."""
        rows.read()
        with torch.cuda.stream(self._stream) if self._stream is not None else nullcontext():
            rows.copy()

    def _beside(self, one: PrefetchedKeys) -> AbstractContextManager[object]:
        """Returns the context of the prefetcher's stream, after the caller's present work.

        The stream also waits until the keys are written.
        """
        if self._stream is None:
            return nullcontext()
        if one.ready is not None:
            self._stream.wait_event(one.ready)
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        return torch.cuda.stream(self._stream)


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    """A request to the device for a list of the misses of a batch."""

    readback: HostReadback
    room: int | None  # for each table; None: for all of its keys
    since: int  # the time of the newest use before the request
    marked: _Event  # when the uses of resident rows are marked

    def is_there(self) -> bool:
        """Returns whether the list is on the host."""
        return self.readback.is_there()

    def counts(self) -> list[int]:
        """Returns the number of misses of each table."""
        counts = self.readback.counts
        return counts[: len(counts) // 2]

    def ids(self, keys: TableKeys) -> list[Ids]:
        """Returns the misses of each table."""
        counts, ids = self.counts(), self.readback.others()
        if self.room is not None:
            return listed(ids, counts, self.room)
        return [ids[a : a + n] for a, n in zip(keys.splits, counts, strict=False)]


class PrefetchedKeys:
    """One later batch, with its request and its read. Single-owner."""

    def __init__(self, keys: TableKeys, whole: Int64[Tensor, "all"], ready: _Event) -> None:
        self.keys, self.whole = keys, whole  # referenced, so that their address is not reused
        self.ready = ready  # when the ids are written
        self.request: _Request | None = None
        self.rows: MissRead | None = None  # if there are misses
        self.reading: Future[None] | None = None

    def fail(self, error: Exception) -> None:
        """Makes the lookup of the batch raise this error."""
        self.reading = Future()
        self.reading.set_exception(error)

    def forget(self) -> None:
        """Releases the read of a batch that will not be looked up."""
        if self.rows is None or self.reading is None:
            return
        if self.reading.cancel():
            self.rows.close()
        else:
            rows = self.rows
            self.reading.add_done_callback(lambda _: rows.close())
