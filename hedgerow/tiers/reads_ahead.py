"""Batches whose rows are read from behind caches on a device before they are looked up."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from ..core.shapes import Int32, Int64
from ..tables.multi.device_group import DeviceGroup
from ..tables.store import TableKeys
from .caching import CachingTable
from .found import Told
from .list_room import ListRoom, listed
from .reads_behind import Behind

_Event = torch.Event | torch.cuda.Event | None
_MOST_BATCHES = 8  # that wait to be looked up; later ones are not read then


class ReadsAhead:
    """Later batches of K caches, in the order of their lookups. Single-owner.

    The owner waits for nothing: `ask` has the device find which keys it lacks, a thread reads their
    rows and copies them to the device, both on a stream of their own. `go_on` starts the thread
    once the device has told. It is a hint: which rows come or left in between is found when the
    batch is looked up. Rows that are there are `used` from then on, so that they hardly leave.
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
        self._room = ListRoom(len(caches))
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
            while self._batches:  # nobody looks these up
                self._batches.popleft().forget()
        self._refused = 0
        self._batches.append(_Batch(keys, whole))

    def ask(self) -> None:
        """Has the device find what it lacks of batches that it was not asked for yet.

        After a lookup: what follows it leaves the device time for that, the lookup would wait.
        """
        for one in self._batches:
            if one.told is None:
                self._ask(one)

    def await_uses(self) -> None:
        """What the stream of the caller does from now on sees which rows these batches use."""
        for one in self._batches:
            if isinstance(one.marked, torch.cuda.Event):
                torch.cuda.current_stream(self.device).wait_event(one.marked)

    def asked_since(self) -> int | None:
        """Since when rows are asked for and nobody notes what is written; None = none are."""
        asked = (one for one in self._batches if one.told is not None and one.reading is None)
        return min((one.since for one in asked), default=None)

    def go_on(self) -> None:
        """Starts to read what the device has found."""
        self.ask()
        for one in self._batches:
            if one.reading is None and one.told is not None and one.told.is_there():
                try:
                    self._read(one)
                except Exception as error:  # no step fails for it: who looks the batch up is told
                    one.reading = Future()
                    one.reading.set_exception(error)

    def take(self, whole: Int64[Tensor, "all"]) -> Behind | None:
        """The rows that were read for a batch, which is looked up now: the very same ids.

        Of batches before it nobody will ask.
        """
        if not self._batches or not len(whole):
            return None
        if all(one.whole.data_ptr() != whole.data_ptr() for one in self._batches):
            return None
        while (one := self._batches.popleft()).whole.data_ptr() != whole.data_ptr():
            one.forget()
        self._refused = 0
        late = one.reading is None or not one.reading.done()
        if one.told is None:
            self._ask(one)
        if one.reading is None:
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

    def _ask(self, one: _Batch) -> None:
        now, keys = self._caches[0]._now, one.keys
        with self._beside():
            if self._stream is not None:  # the caller may let them go before they are read
                keys.ids.record_stream(self._stream)
            listing = self._group.absent(keys, self._used, now, self._room.of(keys))
            one.marked = self._stream and self._stream.record_event()
            one.told = Told(listing.words, counts=2 * listing.tables)
            one.since, one.room = now, listing.room

    def _read(self, one: _Batch) -> None:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="hedgerow prefetch")
        assert one.told is not None
        counts = one.told.counts[: len(self._caches)]
        self._room.lacked(counts)
        asked = listed(one.told.others(), counts, one.room)  # others come with the lookup
        if not any(counts):
            one.reading = Future()
            one.reading.set_result(None)
            return
        behind = Behind(self._caches, asked, one.since)
        try:
            one.reading = self._thread.submit(self._read_and_copy, behind)
        except BaseException:
            behind.close()
            raise
        one.behind = behind

    def _read_and_copy(self, behind: Behind) -> None:
        """In the thread."""
        behind.read()
        with torch.cuda.stream(self._stream) if self._stream is not None else nullcontext():
            behind.copy()

    def _beside(self) -> AbstractContextManager[object]:
        """On the stream of its own, after what the caller's has to do now."""
        if self._stream is None:
            return nullcontext()
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        return torch.cuda.stream(self._stream)


class _Batch:
    """One batch and what is known of it; single-owner."""

    def __init__(self, keys: TableKeys, whole: Int64[Tensor, "all"]) -> None:
        self.keys, self.whole = keys, whole  # kept, so that no other batch lies there
        self.told: Told | None = None  # what the device lacks, `room` of each table
        self.room = 0
        self.since = 0  # the time before the device was asked
        self.marked: _Event = None
        self.behind: Behind | None = None  # if the device lacks some
        self.reading: Future[None] | None = None

    def forget(self) -> None:
        """Nobody will look it up."""
        if self.behind is None or self.reading is None:
            return
        if self.reading.cancel():
            self.behind.close()
        else:
            behind = self.behind
            self.reading.add_done_callback(lambda _: behind.close())
