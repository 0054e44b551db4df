"""Reads the rows of later batches for several caches on one device, before their lookups."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from threading import Lock

import torch
from torch import Tensor

from ..core.shapes import Int32, Int64
from ..tables.multi.device_group import DeviceGroup
from ..tables.store import TableKeys
from .caching import CachingTable
from .misses import HostReadback, ListRoom, MissRead, listed
from .residency_map import Ids

_Event = torch.Event | torch.cuda.Event | None
_MOST_BATCHES = 8  # that wait for their lookups; later ones are not prefetched


class CachePrefetcher:
    """Later batches of K caches, in the order of their lookups. One thread adds them.

    Owns a lock for requests and lookups, which other threads make, too. The caller never waits.
    `ask` has the device list the misses of a batch, and marks its resident rows as used, so that
    they hardly leave. `go_on` starts a thread once the list is on the host; the thread reads the
    rows and copies them to the device. Both use a stream of their own. A prefetch is a hint: the
    lookup of the batch finds out which rows came or left in between.
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
        self._refused = 0  # batches in a row, while none was looked up
        self._room, self._asking = ListRoom(len(caches)), Lock()
        self._thread: ThreadPoolExecutor | None = None
        self._stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None

    def __len__(self) -> int:
        return len(self.batches)

    def add(self, keys: TableKeys, whole: Int64[Tensor, "all"]) -> None:
        """Adds keys that are part of a batch, the `whole`, which will be looked up later."""
        if not len(whole):  # all empty tensors have one address
            return
        if len(self.batches) >= _MOST_BATCHES:
            self._refused += 1
            if self._refused <= _MOST_BATCHES:  # the oldest batch is the next that is needed
                return
            with self._asking:
                while self.batches:  # they were never looked up
                    self.batches.popleft().forget()
        self._refused = 0
        ready = None  # a later `ask` may run on another stream, which must wait for the ids
        if self.device.type == "cuda":
            ready = torch.cuda.current_stream(self.device).record_event()
        self.batches.append(PrefetchedKeys(keys, whole, ready))

    def ask(self) -> None:
        """Has the device list the misses of batches for which it has not done so.

        Call it after the kernels of a lookup: those would have to wait.
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
        """Later work of the caller's stream sees which rows these batches use."""
        for one in tuple(self.batches):
            if one.request is not None and isinstance(one.request.marked, torch.cuda.Event):
                torch.cuda.current_stream(self.device).wait_event(one.request.marked)

    def asked_since(self) -> int | None:
        """The time of the first request whose reads are not logged yet; None if there is none."""
        requests = (one.request for one in tuple(self.batches) if one.reading is None)
        return min((one.since for one in requests if one is not None), default=None)

    def go_on(self) -> None:
        """Starts to read the rows of misses that the device has listed."""
        self.ask()
        for one in tuple(self.batches):
            if one.reading is None and one.request is not None and one.request.is_there():
                try:
                    if not self._ask_for_all(one):
                        self._read(one)
                except Exception as error:  # as in `ask`
                    one.fail(error)

    def take(self, whole: Int64[Tensor, "all"]) -> MissRead | None:
        """The rows that were read for a batch of the very same ids, which is looked up now.

        Earlier batches are forgotten.
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
        """Removes the batch of these ids, if there is one, and forgets those before it."""
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
        """Lists up to `room` misses of each table, or all."""
        now, keys = self._caches[0].moves.clock.now, one.keys
        with self._beside(one):
            if self._stream is not None:  # the caller may free them before they are read
                keys.ids.record_stream(self._stream)
            listing = self._group.absent(keys, self._used, now, room)
            marked = self._stream and self._stream.record_event()
            readback = HostReadback(listing.words, counts=2 * listing.tables)
            one.request = _Request(readback, room, now, marked)

    def _ask_for_all(self, one: PrefetchedKeys) -> bool:
        """Lists the misses again if the first list had no room for all. Whether it does.

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
        """Has the thread read the rows. Waits for the list."""
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
        """Runs in the thread."""
        rows.read()
        with torch.cuda.stream(self._stream) if self._stream is not None else nullcontext():
            rows.copy()

    def _beside(self, one: PrefetchedKeys) -> AbstractContextManager[object]:
        """The prefetcher's stream, after the present work of the caller's, and with the keys."""
        if self._stream is None:
            return nullcontext()
        if one.ready is not None:
            self._stream.wait_event(one.ready)
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        return torch.cuda.stream(self._stream)


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    """The misses of a batch, as soon as the device has listed them."""

    readback: HostReadback
    room: int | None  # for each table; None: for all of its keys
    since: int  # the time of the newest use before the request
    marked: _Event  # when the uses of resident rows are marked

    def is_there(self) -> bool:
        """Whether the list is on the host."""
        return self.readback.is_there()

    def counts(self) -> list[int]:
        """The number of misses of each table."""
        counts = self.readback.counts
        return counts[: len(counts) // 2]

    def ids(self, keys: TableKeys) -> list[Ids]:
        """The misses of each table."""
        counts, ids = self.counts(), self.readback.others()
        if self.room is not None:
            return listed(ids, counts, self.room)
        return [ids[a : a + n] for a, n in zip(keys.splits, counts, strict=False)]


class PrefetchedKeys:
    """One later batch and what is known of it; single-owner."""

    def __init__(self, keys: TableKeys, whole: Int64[Tensor, "all"], ready: _Event) -> None:
        self.keys, self.whole = keys, whole  # kept, so that no other batch gets their address
        self.ready = ready  # when the ids are written
        self.request: _Request | None = None
        self.rows: MissRead | None = None  # if there are misses
        self.reading: Future[None] | None = None

    def fail(self, error: Exception) -> None:
        """The lookup of the batch will raise this error."""
        self.reading = Future()
        self.reading.set_exception(error)

    def forget(self) -> None:
        """The batch will not be looked up."""
        if self.rows is None or self.reading is None:
            return
        if self.reading.cancel():
            self.rows.close()
        else:
            rows = self.rows
            self.reading.add_done_callback(lambda _: rows.close())
