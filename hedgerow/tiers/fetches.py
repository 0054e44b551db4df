"""Rows that several caches on one device lack, brought from behind them in one go."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..core.shapes import Float32, Int32, Int64
from ..kernels import mark
from ..tables.copies import host_room, to_device, to_host
from ..tables.host_moves import read_several
from ..tables.moving import MovingRows
from ..tables.multi.device_group import DeviceGroup
from ..tables.store import TableKeys
from .cache_moves import Notes
from .caching import CachingTable
from .device_cache_places import places_of
from .device_places import fast_of
from .found import Found, Rest

_MOST_AHEAD = 8  # batches whose rows wait to be used; the oldest is forgotten then


@dataclass(frozen=True, slots=True, eq=False)
class _Read:
    """Rows from behind caches, on their way to the device, and what was written there since."""

    rest: Rest
    found: Tensor  # on the host, which of them have a row there
    there: tuple[Tensor, Tensor, Tensor]  # rows, states and times
    notes: dict[int, Notes]
    close: Callable[[], None]  # ends the notes
    arrived: torch.cuda.Event | None = None  # if the copies are on a stream of their own


@dataclass(frozen=True, slots=True, eq=False)
class _Ahead:
    """A later batch, whose rows are being read."""

    batch: Tensor  # the ids of all tables, of the group and others
    read: Future[_Read | None]

    def forget(self) -> None:
        """Nobody will look it up."""
        if not self.read.cancel():
            self.read.add_done_callback(_close)


def _close(read: Future[_Read | None]) -> None:
    done = None if read.cancelled() or read.exception() is not None else read.result()
    if done is not None:
        done.close()


class Fetches:
    """What K alike caches of one device do together; owned by `Together`.

    Rows are read beside whoever steps, without a lock: what is written behind a cache meanwhile
    does not come. `prefetch` does that for a later batch in a thread, with copies on a stream of
    their own; its rows come to the caches when it is looked up. It is a hint: which rows come is
    found out then.
    """

    def __init__(self, caches: Sequence[CachingTable], group: DeviceGroup) -> None:
        self._caches, self._group = caches, group
        self.device = caches[0].device
        self._used, uses = group.spread(torch.int32)
        self._changed, changes = group.spread(torch.bool)
        self._firsts = [int(part.storage_offset()) for part in uses]  # slots of each table
        for table, used, changed in zip(caches, uses, changes, strict=True):
            places_of(table).used, places_of(table).changed = used, changed
        self._ahead: deque[_Ahead] = deque()
        self._thread: ThreadPoolExecutor | None = None
        self._stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None

    def tick(self) -> int:
        """The time of a use: after all before."""
        now = 1 + max(table._now for table in self._caches)
        for table in self._caches:
            table._now = now
        return now

    def mark(self, slots: Int32[Tensor, "n"], now: int, *, changed: bool = False) -> None:
        """Rows of these slots, as all tables together number them, are used now, or changed."""
        with fast_of(self._caches[0])._here():
            mark.mark(slots, self._used, self._changed if changed else None, now)

    # ---- rows come

    def bring(
        self,
        keys: TableKeys,
        found: Found,
        now_found: Callable[[Found], Found],
        out: Float32[Tensor, "n dim"] | None = None,
        batch: Int64[Tensor, "all"] | None = None,
    ) -> Found:
        """Rows that caches lack come, and go to `out` if given; what this call uses stays.

        `now_found` tells where keys are if rows have moved since they were found. `batch` is what
        the keys are part of, perhaps prefetched.
        """
        rest = Rest.of(keys, found.slots)
        ahead = None if batch is None else self._take_ahead(batch)
        if ahead is not None:
            found = self._come(keys, found, rest, ahead, now_found, out)
            rest = Rest.of(keys, found.slots) if found.absent else rest
        if found.absent:
            for k, share in rest.shares():
                self._caches[k]._await(rest.ids[share].numpy())
            found = self._come(keys, found, rest, self._read(rest), now_found, out)
        return replace(found, asked=True)

    def _come(
        self,
        keys: TableKeys,
        found: Found,
        rest: Rest,
        read: _Read,
        now_found: Callable[[Found], Found],
        out: Tensor | None,
    ) -> Found:
        with ExitStack() as held:
            held.callback(read.close)
            held.enter_context(self._caches[0]._writing)
            now, before = self.tick(), found
            found = now_found(found)  # some may have come meanwhile
            if found is not before:
                rest = Rest.of(keys, found.slots)
            self.mark(self._group.numbered(keys, found.slots), now)
            if not self._make_way(read):
                return found
            with self._caches[0]._moves.alone(), self._whole_rows(read.rest):
                at = self._put(read, now)
                slots = self._look_again(rest, out)
                placed, again = to_host(at, slots)
                self._count(read.rest, at, placed)
                found.slots.index_copy_(0, rest.at, slots)
                return Found(found.slots, self.epochs(), int((again < 0).sum()))

    def epochs(self) -> tuple[object, ...]:
        """Another mark whenever a row has moved."""
        return tuple(fast_of(table)._epoch for table in self._caches)

    def _make_way(self, read: _Read) -> bool:
        """Chooses the rows that come: unchanged ones, as many as there is room for."""
        rest, come = read.rest, read.found
        for k, share in rest.shares():
            read.notes[k].keep_unchanged(rest.ids[share], come[share])
        counts = rest.counts(come)
        for k, share in rest.shares():  # nobody leaves for ids without a row
            fits = self._caches[k].make_way(counts[k]) if counts[k] else 0
            if fits < counts[k]:
                mine = come[share]
                mine[mine.cumsum(0) > fits] = False
        return bool(come.any())

    def _put(self, read: _Read, now: int) -> Int32[Tensor, "m"]:
        if read.arrived is not None:
            stream = torch.cuda.current_stream(self.device)
            stream.wait_event(read.arrived)
            for part in (read.rest.there, *read.there):  # their memory is the other stream's
                part.record_stream(stream)
        for k, share in read.rest.shares():
            fast = fast_of(self._caches[k])
            fast._begin_at(0, share.stop - share.start)
            fast._timed, fast._epoch = True, object()
        wanted = to_device(read.found, self.device)
        coming = MovingRows(read.rest.there, wanted, *read.there)
        at = self._group.put(read.rest.asked(), coming)
        self.mark(at, now)
        return at

    def _look_again(self, rest: Rest, out: Tensor | None) -> Tensor:
        """Slots of the keys that were not there; their rows into `out`."""
        if out is None:
            return self._group.find(rest.asked())
        rows = out.new_empty(len(rest.at), out.shape[1])
        slots = self._group.lookup(rest.asked(), rows, born=False)
        out.index_copy_(0, rest.at, rows)
        return slots

    def _count(self, rest: Rest, at: Tensor, placed: Tensor) -> None:
        counts = rest.counts(placed >= 0)
        for k, share in rest.shares():
            places, mine = places_of(self._caches[k]), None
            if places.numbers_stays:
                mine = torch.where(at[share] >= 0, at[share] - self._firsts[k], -1)
            places.came(counts[k], mine)
            self._caches[k].counters.add("fetches", counts[k])

    @contextmanager
    def _whole_rows(self, rest: Rest) -> Iterator[None]:
        """If this breaks off, ids that have a place and not their row yet leave it; all count."""
        try:
            yield
        except BaseException:
            for k, share in rest.shares():
                fast_of(self._caches[k]).move_out_unset(rest.ids[share])
                places_of(self._caches[k]).recount()
            raise

    # ---- rows are read

    def _read(self, rest: Rest) -> _Read:
        """Whole rows from behind caches, through memory that the device reaches."""
        layout, m = self._caches[0].layout, len(rest.ids)
        here = MovingRows(
            rest.ids,
            torch.empty(m, dtype=torch.bool),
            host_room((m, layout.dim), torch.float32, self.device),
            host_room((m, layout.state_floats), torch.float32, self.device),
            host_room((m,), torch.int64, self.device),
        )
        with ExitStack() as noting:
            notes = {k: noting.enter_context(self._caches[k].noted()) for k, _ in rest.shares()}
            for k, share in rest.shares():
                self._caches[k].settle(rest.ids[share])
            read_several([table.slow for table in self._caches], rest.splits, here)
            rows, states, ts = (
                to_device(x, self.device) for x in (here.rows, here.states, here.ts)
            )
            there = (rows, states, ts)
            return _Read(rest, here.found, there, notes, noting.pop_all().close)

    # ---- batches to come

    def prefetch(self, keys: TableKeys, batch: Int64[Tensor, "all"]) -> None:
        """Starts to read what caches lack of these keys, of a batch to be looked up later."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="hedgerow fetch")
        ready = None
        if self._stream is not None:
            ready = torch.cuda.current_stream(self.device).record_event()
        self._ahead.append(_Ahead(batch, self._thread.submit(self._read_ahead, keys, ready)))
        if len(self._ahead) > _MOST_AHEAD:
            self._ahead.popleft().forget()

    def _read_ahead(self, keys: TableKeys, ready: torch.cuda.Event | None) -> _Read | None:
        if self._stream is None or ready is None:
            return self._absent_rows(keys)
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(ready)
            read = self._absent_rows(keys)
            return None if read is None else replace(read, arrived=self._stream.record_event())

    def _absent_rows(self, keys: TableKeys) -> _Read | None:
        # Rows may move meanwhile: who looks the batch up finds out which came or left.
        rest = Rest.of(keys, self._group.find(keys))
        for k, share in rest.shares():
            self._caches[k].counters.add("prefetches", share.stop - share.start)
        return self._read(rest) if len(rest.ids) else None

    def _take_ahead(self, batch: Int64[Tensor, "all"]) -> _Read | None:
        """What was read for a batch, the very same ids; of those before it nobody will ask."""
        if all(one.batch.data_ptr() != batch.data_ptr() for one in self._ahead):
            return None
        while (one := self._ahead.popleft()).batch.data_ptr() != batch.data_ptr():
            one.forget()
        late = not one.read.done()
        read = one.read.result()
        for k, share in read.rest.shares() if read is not None and late else ():
            self._caches[k].counters.add("late_prefetches", share.stop - share.start)
        return read
