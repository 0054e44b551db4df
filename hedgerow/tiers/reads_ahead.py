"""Batches whose rows are read from behind caches on a device before they are looked up."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate

import torch
from torch import Tensor

from ..core.shapes import Int64
from ..tables.copies import host_room
from ..tables.multi.device_group import DeviceGroup
from ..tables.store import TableKeys
from .caching import CachingTable
from .found import Asked
from .reads_behind import Behind

_MOST_BATCHES = 8  # that wait to be looked up; the oldest is forgotten then


class ReadsAhead:
    """Later batches of K caches, in the order of their lookups. Single-owner.

    A batch goes through three stages, none of which the owner waits for: the device finds which
    keys it lacks, a thread reads their rows, they are copied to the device on a stream of its own.
    Each call of the owner starts the next stage of what is ready. It is a hint: rows that come or
    leave in between are found when the batch is looked up.
    """

    def __init__(self, caches: Sequence[CachingTable], group: DeviceGroup) -> None:
        self._caches, self._group = caches, group
        self.device = caches[0].device
        self._batches: deque[_Batch] = deque()
        self._thread: ThreadPoolExecutor | None = None
        self._stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None

    def __len__(self) -> int:
        return len(self._batches)

    def add(self, keys: TableKeys, whole: Int64[Tensor, "all"]) -> None:
        """Begins with keys that are part of a batch, the `whole`, to be looked up later."""
        if len(self._batches) == _MOST_BATCHES:
            self._batches.popleft().forget()
        with self._beside():
            self._batches.append(_Batch(whole, *self._absent(keys)))

    def go_on(self) -> None:
        """Starts what can be started."""
        for one in self._batches:
            if one.behind is None and not one.is_nothing and one.is_found():
                self._read(one)
            if one.behind is not None and not one.is_copied and one.reading.done():
                self._copy(one)

    def take(self, whole: Int64[Tensor, "all"]) -> Behind | None:
        """The rows that were read for a batch, which is looked up now: the very same ids.

        Of batches before it nobody will ask.
        """
        if all(one.whole.data_ptr() != whole.data_ptr() for one in self._batches):
            return None
        while (one := self._batches.popleft()).whole.data_ptr() != whole.data_ptr():
            one.forget()
        late = not one.is_copied
        if one.behind is None and not one.is_nothing:
            self._read(one)
        if one.behind is None:
            return None
        if not one.is_copied:
            self._copy(one)
        for k, share in one.behind.asked.shares():
            counters, rows = self._caches[k].counters, share.stop - share.start
            counters.add("prefetches", rows)
            if late:
                counters.add("late_prefetches", rows)
        return one.behind

    # ---- stages

    def _absent(
        self, keys: TableKeys
    ) -> tuple[tuple[int, ...], Tensor, Tensor, torch.Event | torch.cuda.Event | None]:
        """Ids that the device lacks, on the host: from where each table's begin, and how many."""
        there = self._group.absent(keys)
        ids, counts = (host_room(tuple(x.shape), x.dtype, self.device) for x in there)
        for target, source in zip((ids, counts), there, strict=True):
            target.copy_(source, non_blocking=True)
        return keys.splits, ids, counts, self._stream and self._stream.record_event()

    def _read(self, one: _Batch) -> None:
        asked = one.asked()
        if not len(asked.ids):
            one.is_nothing = True
            return
        one.behind = Behind(self._caches, asked)
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="hedgerow prefetch")
        one.reading = self._thread.submit(one.behind.read)

    def _copy(self, one: _Batch) -> None:
        assert one.behind is not None
        try:
            one.reading.result()
        except BaseException:
            one.behind.close()
            raise
        with self._beside():
            one.behind.copy()
        one.is_copied = True

    def _beside(self) -> AbstractContextManager[object]:
        """On the stream of its own, after what the caller's has to do now."""
        if self._stream is None:
            return nullcontext()
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        return torch.cuda.stream(self._stream)


class _Batch:
    """One batch and what is known of it; single-owner."""

    def __init__(
        self,
        whole: Tensor,
        starts: tuple[int, ...],
        ids: Tensor,
        counts: Tensor,
        event: torch.Event | torch.cuda.Event | None,
    ) -> None:
        self.whole = whole  # kept, so that no other batch lies there
        self._starts, self._ids, self._counts, self._event = starts, ids, counts, event
        self.behind: Behind | None = None
        self.reading: Future[None] = Future()
        self.is_copied = self.is_nothing = False

    def is_found(self) -> bool:
        """Whether the device has told which keys it lacks."""
        return self._event is None or self._event.query()

    def asked(self) -> Asked:
        """The keys that the device lacks; waits for it."""
        if self._event is not None:
            self._event.synchronize()
        counts = self._counts.tolist()
        parts = [self._ids[a : a + n] for a, n in zip(self._starts, counts, strict=False)]
        return Asked(torch.cat(parts), (0, *accumulate(counts)))

    def forget(self) -> None:
        """Nobody will look it up."""
        if self.behind is not None and not self.reading.cancel():
            behind = self.behind
            self.reading.add_done_callback(lambda _: behind.close())
        elif self.behind is not None:
            self.behind.close()
