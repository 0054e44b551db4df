"""Reads rows of later batches for several caches on one device."""

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
_MOST_BATCHES = 8  # that wait to be looked up; later ones are not read then


class CachePrefetcher:
    """Later batches of K caches, in the order of their lookups. One thread adds them.

    The owner waits for nothing: `ask` has the device find which keys it lacks, a thread reads their
    rows and copies them to the device, both on a stream of their own. `go_on` starts the thread
    once the device has told. It is a hint: which rows come or left in between is found when the
    batch is looked up. Rows that are there are `used` from then on, so that they hardly leave.
    Owns a lock for who asks and takes: lookups of other threads do, too.
    """

    def __init__(
        self,
        caches: Sequence[CachingTable],
        group: DeviceGroup,
        used: Int32[Tensor, "slots"],
    ) -> None:
        self._caches, self._group, self._used = caches, group, used
        self.device = caches[0].device
        self._batches: deque[_Batch] = deque()
        self._refused = 0  # batches in a row, while none was looked up
        self._room, self._asking = ListRoom(len(caches)), Lock()
        self._thread: ThreadPoolExecutor | None = None
        self._stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None

    def __len__(self) -> int:
        return len(self._batches)

    def add(self, keys: TableKeys, whole: Int64[Tensor, "all"]) -> None:
        """Keys that are part of a batch, the `whole`, to be looked up later."""
        if not len(whole):  # all such lie in one place
            return
        if len(self._batches) >= _MOST_BATCHES:
            self._refused += 1
            if self._refused <= _MOST_BATCHES:  # the oldest is the next that is needed
                return
            with self._asking:
                while self._batches:  # nobody looks these up
                    self._batches.popleft().forget()
        self._refused = 0
        ready = None  # the stream of a later `ask` may be another's, who does not wait for them
        if self.device.type == "cuda":
            ready = torch.cuda.current_stream(self.device).record_event()
        self._batches.append(_Batch(keys, whole, ready))

    def ask(self) -> None:
        """Has the device find what it lacks of batches that it was not asked for yet.

        After the kernels of a lookup: they would wait, what follows leaves the device time for it.
        """
        if not self._batches:
            return
        for one in tuple(self._batches):
            with self._asking:
                if one.asked is not None or one.reading is not None:
                    continue
                try:
                    self._ask(one, self._room.of(one.keys))
                except Exception as error:  # no step fails for it: who looks the batch up is told
                    one.fail(error)

    def await_uses(self) -> None:
        """What the stream of the caller does from now on sees which rows these batches use."""
        for one in tuple(self._batches):
            if one.asked is not None and isinstance(one.asked.marked, torch.cuda.Event):
                torch.cuda.current_stream(self.device).wait_event(one.asked.marked)

    def asked_since(self) -> int | None:
        """Since when rows are asked for and nobody notes what is written; None = none are."""
        asked = (one.asked for one in tuple(self._batches) if one.reading is None)
        return min((one.since for one in asked if one is not None), default=None)

    def go_on(self) -> None:
        """Starts to read what the device has found."""
        self.ask()
        for one in tuple(self._batches):
            if one.reading is None and one.asked is not None and one.asked.told.is_there():
                try:
                    if not self._ask_for_all(one):
                        self._read(one)
                except Exception as error:  # as above
                    one.fail(error)

    def take(self, whole: Int64[Tensor, "all"]) -> MissRead | None:
        """The rows that were read for a batch, which is looked up now: the very same ids.

        Of batches before it nobody will ask.
        """
        one = self._popped(whole)
        if one is None:
            return None
        self._refused = 0
        late = one.reading is None or not one.reading.done()
        with self._asking:
            if one.asked is None and one.reading is None:
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
        if one.behind is None:
            return None
        for k, share in one.behind.shares():
            counters, rows = self._caches[k].counters, share.stop - share.start
            counters.add("prefetches", rows)
            if late:
                counters.add("late_prefetches", rows)
        return one.behind

    # ---- stages

    def _popped(self, whole: Int64[Tensor, "all"]) -> _Batch | None:
        """The batch of these ids, if there is one; those before it are forgotten."""
        if not self._batches or not len(whole):
            return None
        where = whole.data_ptr()
        with self._asking:  # another thread may look up the same
            if all(one.whole.data_ptr() != where for one in tuple(self._batches)):
                return None
            while (one := self._batches.popleft()).whole.data_ptr() != where:
                one.forget()
        return one

    def _ask(self, one: _Batch, room: int | None) -> None:
        """For up to `room` keys of each table, or all."""
        now, keys = self._caches[0]._now, one.keys
        with self._beside(one):
            if self._stream is not None:  # the caller may let them go before they are read
                keys.ids.record_stream(self._stream)
            listing = self._group.absent(keys, self._used, now, room)
            marked = self._stream and self._stream.record_event()
            told = HostReadback(listing.words, counts=2 * listing.tables)
            one.asked = _Asked(told, room, now, marked)

    def _ask_for_all(self, one: _Batch) -> bool:
        """Once more, if there was no room for all that the device lacks: then it has not told yet.

        Waits for it, if it has not told the first time.
        """
        assert one.asked is not None
        counts, room = one.asked.counts(), one.asked.room
        self._room.lacked(counts)
        if room is None or max(counts) <= room:
            return False
        self._ask(one, None)
        return True

    def _read(self, one: _Batch) -> None:
        """Waits for what the device tells."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="hedgerow prefetch")
        assert one.asked is not None
        ids = one.asked.ids(one.keys)
        if not any(map(len, ids)):
            one.reading = Future()
            one.reading.set_result(None)
            return
        behind = MissRead(self._caches, ids, one.asked.since)
        try:
            one.reading = self._thread.submit(self._read_and_copy, behind)
        except BaseException:
            behind.close()
            raise
        one.behind = behind

    def _read_and_copy(self, behind: MissRead) -> None:
        """In the thread."""
        behind.read()
        with torch.cuda.stream(self._stream) if self._stream is not None else nullcontext():
            behind.copy()

    def _beside(self, one: _Batch) -> AbstractContextManager[object]:
        """On the stream of its own, after what the caller's has to do now, and with its keys."""
        if self._stream is None:
            return nullcontext()
        if one.ready is not None:
            self._stream.wait_event(one.ready)
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        return torch.cuda.stream(self._stream)


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    """What the device lacks of a batch, as soon as it has told."""

    told: HostReadback
    room: int | None  # of each table; None: for all of its keys
    since: int  # the time before the device was asked
    marked: _Event  # uses are

    def counts(self) -> list[int]:
        """How many keys of each table."""
        counts = self.told.counts
        return counts[: len(counts) // 2]

    def ids(self, keys: TableKeys) -> list[Ids]:
        """They."""
        counts, ids = self.counts(), self.told.others()
        if self.room is not None:
            return listed(ids, counts, self.room)
        return [ids[a : a + n] for a, n in zip(keys.splits, counts, strict=False)]


class _Batch:
    """One batch and what is known of it; single-owner."""

    def __init__(self, keys: TableKeys, whole: Int64[Tensor, "all"], ready: _Event) -> None:
        self.keys, self.whole = keys, whole  # kept, so that no other batch lies there
        self.ready = ready  # they are
        self.asked: _Asked | None = None
        self.behind: MissRead | None = None  # if the device lacks some
        self.reading: Future[None] | None = None

    def fail(self, error: Exception) -> None:
        """Who looks it up is told."""
        self.reading = Future()
        self.reading.set_exception(error)

    def forget(self) -> None:
        """Nobody will look it up."""
        if self.behind is None or self.reading is None:
            return
        if self.reading.cancel():
            self.behind.close()
        else:
            behind = self.behind
            self.reading.add_done_callback(lambda _: behind.close())
