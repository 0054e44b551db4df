"""Alike tables of two tiers whose fast rows lie on one device, in steps of one launch for all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core import checks
from ..core.shapes import Float32, Int32, Int64
from ..kernels import mark
from ..tables.copies import host_room, to_device, to_host
from ..tables.device import DeviceTable
from ..tables.moving import MovingRows
from ..tables.multi.device_group import DeviceGroup
from ..tables.schedules import Rate
from ..tables.store import Applied, Missing, TableKeys
from .caching import CachingTable
from .device_cache_places import DeviceCachePlaces
from .hybrid import HybridTable
from .tier_writes import check_update
from .write_lock import all_of

COUNTED_STEPS = 16  # of so many, one tells which rows are hot: that takes longer than a step
_MANY_ROWS = 4096  # fewer are read before threads have started
_READERS = 8


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Where the keys of a call are: slots within each table, -1 = not on the device."""

    slots: Int64[Tensor, "n"]
    epoch: tuple[object, ...]
    absent: int  # keys that are not on the device


@dataclass(frozen=True, slots=True, eq=False)
class _Rest:
    """Keys of a call that are not on the device: their positions, and ids by table on the host."""

    at: Int64[Tensor, "m"]
    ids: Int64[Tensor, "m"]
    splits: tuple[int, ...]

    def shares(self) -> Iterator[tuple[int, slice]]:
        """Number and part of each table that has some."""
        for k, (start, stop) in enumerate(pairwise(self.splits)):
            if start < stop:
                yield k, slice(start, stop)


class Together:
    """One step for K tables, of one mode and of alike rows; owned by `TierTables`.

    What the device has is found and stepped there, table by table in one launch. The host is asked
    how many keys are not there, and for those alone. Where the tables' rows lie, and what else may
    be asked of them, is theirs: this only does what K calls of them would.
    """

    def __init__(self, tables: Sequence[CachingTable | HybridTable], group: DeviceGroup) -> None:
        self._tables, self._group = tables, group
        self.device = tables[0].device
        self._caches = [table for table in tables if isinstance(table, CachingTable)]
        self._hybrids = [table for table in tables if isinstance(table, HybridTable)]
        if self._caches:
            self._used, uses = group.spread(torch.int32)
            self._changed, changes = group.spread(torch.bool)
            self._firsts = [int(part.storage_offset()) for part in uses]  # slots of each table
            for table, used, changed in zip(self._caches, uses, changes, strict=True):
                _places(table).used, _places(table).changed = used, changed
        self._steps = 0
        self.names = tuple(table.config.name for table in tables)

    def can(self) -> bool:
        """Whether the tables can still be served by one launch."""
        return self._group.whole()

    # ---- reads

    def lookup(
        self, keys: TableKeys, out: Float32[Tensor, "n dim"], missing: Missing, step: int | None
    ) -> Found:
        """Rows into `out`. With `missing="training"` rows come to caches, since an update follows.

        The caller has checked its arguments.
        """
        brings = missing == "training" and bool(self._caches)
        for table, (start, stop) in self._shares(keys) if brings else ():
            table.check_distinct(keys.ids[start:stop])
        while True:
            # No row moves between the two reads: one that came from behind a cache meanwhile would
            # be read there as it was.
            with self._unmoved():
                found = self._told(self._group.lookup(keys, out, born=False))
                if not (brings and found.absent):
                    self._read_rest(keys, found, out, missing, step)
                    return found
            self._bring(keys, found)
            brings = False

    def _read_rest(
        self, keys: TableKeys, found: Found, out: Tensor, missing: Missing, step: int | None
    ) -> None:
        """Rows that are not on the device; counts the hits of the call."""
        rest, absent = self._rest(keys, found), [0] * len(self._tables)
        if rest is not None:
            self._read_slow(rest, out, missing, step)
            absent = np.diff(rest.splits).tolist()
        for (table, (start, stop)), missed in zip(self._shares(keys), absent, strict=True):
            table._count_hits(stop - start - missed, 0, stop - start - missed)

    def _where(self, keys: TableKeys) -> Found:
        # The mark of a move that is under way beside slots of before would make these believed.
        with self._unmoved():
            return self._told(self._group.find(keys))

    def _told(self, slots: Int64[Tensor, "n"]) -> Found:
        return Found(slots, self.epochs(), int((slots < 0).sum()))

    def _read_slow(self, rest: _Rest, out: Tensor, missing: Missing, step: int | None) -> None:
        rows = host_room((len(rest.ids), out.shape[1]), torch.float32, self.device)
        for k, share in rest.shares():
            table, ids = self._tables[k], rest.ids[share]
            table._read_slow(ids, missing, step, rows[share])
            there = int(table._in_slow(ids).sum())
            table._count_hits(0, there, len(ids))
        out[rest.at] = to_device(rows, self.device)

    # ---- the step

    def check(
        self,
        keys: TableKeys,
        rates: Sequence[Sequence[Rate] | None] | None,
        step: int | None,
        counts: Int64[Tensor, "n"] | None,
    ) -> list[float] | None:
        """Refuses what `apply_gradients` of a table would; the rates, None if there is no one set.

        The caller has checked keys and gradients.
        """
        if counts is not None:
            checks.tensor("counts", counts, torch.int64, (len(keys.ids),), self.device)
        found: list[Sequence[float]] = []
        for k, (table, (start, stop)) in enumerate(self._shares(keys)):
            if start == stop:  # what it would need is not asked for
                continue
            own = None if rates is None else rates[k]
            found.append(_fast(table)._rates_at(own, step)[0])
            table.check_room(keys.ids[start:stop], step)
        return list(found[0]) if found and all(one == found[0] for one in found) else None

    def apply(
        self,
        keys: TableKeys,
        found: Found | None,
        grads: Float32[Tensor, "n dim"],
        rates: Sequence[float],
        step: int | None,
        ts: int,
        counts: Int64[Tensor, "n"] | None,
    ) -> Applied:
        """One step on all tables, at the rates that `check` told."""
        found = self._ready(keys, found)
        with self._writing():
            found = self._ready(keys, found, bring=False)
            rest = self._rest(keys, found)
            sizes = [stop - start for start, stop in pairwise(keys.splits)]
            # A table without keys in the call is not told of its time: rows would expire by it.
            times = {k: self._tables[k].slow._time(ts) for k, n in enumerate(sizes) if n}
            done = [] if rest is None else self._step_slow(rest, grads, rates, step, times, counts)
            numbered = self._group.numbered(keys, found.slots)
            if self._caches:
                self._mark(numbered, self._changed, self._tick())
            for k, time in times.items():
                _fast(self._tables[k])._begin(time, sizes[k])
            made = self._group.step_known(keys, numbered, grads, rates, max(times.values()))
            for k, time in times.items():
                self._tables[k].slow.saw(time)
            self._after(keys)
            counted = made.sum(dim=0)
        return Applied(sum((one.counts.to(self.device) for one in done), counted))

    def _ready(self, keys: TableKeys, found: Found | None, *, bring: bool = True) -> Found:
        """Where the rows are now; with `bring` after those that a cache should have have come.

        That may wait for another thread, which needs the locks.
        """
        if found is None or found.epoch != self.epochs():
            found = self._where(keys)
        if bring and found.absent and self._caches:
            self._bring(keys, found)
            found = self._where(keys)
        return found

    def _step_slow(
        self,
        rest: _Rest,
        grads: Tensor,
        rates: Sequence[float],
        step: int | None,
        times: Mapping[int, int],
        counts: Tensor | None,
    ) -> list[Applied]:
        (own,) = to_host(grads[rest.at])
        seen = None if counts is None else counts[rest.at].cpu()
        calls: list[tuple[int, Tensor, Tensor, dict[str, Any]]] = []
        for k, share in rest.shares():
            settings: dict[str, Any] = {"rates": rates, "step": step}
            settings["counts"] = None if seen is None else seen[share]
            calls.append((k, rest.ids[share], own[share], settings))
            check_update(self._tables[k].slow, rest.ids[share], own[share], **settings)
        done = []
        for k, ids, mine, settings in calls:  # all were asked before the first changes
            self._tables[k]._settle(ids)
            done.append(self._tables[k].slow.apply_gradients(ids, mine, ts=times[k], **settings))
        return done

    def _after(self, keys: TableKeys) -> None:
        """Now and then rows are told that they are hot, and come to the device."""
        if not self._hybrids:
            return
        self._steps += 1
        if self._steps % COUNTED_STEPS:
            return
        distinct = to_host(*(torch.unique(keys.ids[a:b]) for a, b in pairwise(keys.splits)))
        for table, ids in zip(self._hybrids, distinct, strict=True):
            table._after_update(ids.numpy(), COUNTED_STEPS)

    # ---- rows that are not on the device

    def _bring(self, keys: TableKeys, found: Found) -> None:
        """Rows that caches lack come; what this call uses stays.

        They are read beside whoever steps: what is written behind a cache meanwhile does not come.
        """
        rest = self._rest(keys, found)
        if rest is None:
            return
        for k, share in rest.shares():
            self._caches[k]._await(rest.ids[share].numpy())
        with ExitStack() as noting:
            notes = {k: noting.enter_context(self._caches[k].noted()) for k, _ in rest.shares()}
            here = self._read_absent(rest)
            there = [to_device(x, self.device) for x in (here.rows, here.states, here.ts)]
            with self._writing():
                now = self._tick()
                fresh = self._ready(keys, found, bring=False)  # some may have come meanwhile
                self._mark(self._group.numbered(keys, fresh.slots), None, now)
                for k, share in rest.shares():
                    come = here.found[share]
                    come &= notes[k].unchanged(rest.ids[share])
                    # Nobody leaves for ids without a row.
                    fits = self._caches[k].make_way(int(come.sum()))
                    come[come.cumsum(0) > fits] = False
                absent = TableKeys(keys.ids[rest.at], rest.splits)
                found_there = to_device(here.found, self.device)
                self._put(rest, absent, MovingRows(absent.ids, found_there, *there), now)

    @contextmanager
    def _whole_rows(self, rest: _Rest) -> Iterator[None]:
        """If this breaks off, ids that have a place and not their row yet leave it; all count."""
        try:
            yield
        except BaseException:
            for k, share in rest.shares():
                _fast(self._caches[k]).move_out_unset(rest.ids[share])
                _places(self._caches[k]).recount()
            raise

    def _read_absent(self, rest: _Rest) -> MovingRows:
        """Whole rows from behind caches, in memory that the device reaches."""
        layout, m = self._tables[0].layout, len(rest.ids)
        room = MovingRows(
            rest.ids,
            host_room((m,), torch.bool, self.device),
            host_room((m, layout.dim), torch.float32, self.device),
            host_room((m, layout.state_floats), torch.float32, self.device),
            host_room((m,), torch.int64, self.device),
        )
        parts = (room.ids, room.found, room.rows, room.states, room.ts)

        def read(k: int, share: slice) -> None:
            self._caches[k].read_behind(MovingRows(*(part[share] for part in parts)))

        shares = list(rest.shares())
        if m < _MANY_ROWS:
            for k, share in shares:
                read(k, share)
            return room
        # A table reads some thousands of rows in the thread that asks: so several do.
        with ThreadPoolExecutor(min(len(shares), _READERS)) as threads:
            for reading in [threads.submit(read, k, share) for k, share in shares]:
                reading.result()
        return room

    def _put(self, rest: _Rest, absent: TableKeys, moving: MovingRows, now: int) -> None:
        with self._alone():
            for k, share in rest.shares():
                fast = _fast(self._tables[k])
                fast._begin(0, share.stop - share.start)
                fast._timed, fast._epoch = True, object()
            with self._whole_rows(rest):
                at = self._group.put(absent, moving)
                for k, share in rest.shares():
                    places, mine = _places(self._caches[k]), None
                    if places.numbers_stays:
                        mine = torch.where(at[share] >= 0, at[share] - self._firsts[k], -1)
                    places.came(share.stop - share.start, mine)
            self._mark(at, None, now)
        (came,) = to_host(torch.stack([(at[share] >= 0).sum() for _, share in rest.shares()]))
        for (k, _), rows in zip(rest.shares(), came.tolist(), strict=True):
            self._caches[k].counters.add("fetches", rows)

    def _rest(self, keys: TableKeys, found: Found) -> _Rest | None:
        if not found.absent:
            return None
        at = (found.slots < 0).nonzero()[:, 0]
        ids, where = to_host(keys.ids[at], at)
        cuts = np.searchsorted(where.numpy(), np.array(keys.splits))
        return _Rest(at, ids, tuple(cuts.tolist()))

    # ---- helpers

    def epochs(self) -> tuple[object, ...]:
        """Another mark whenever a row has moved."""
        return tuple(_fast(table)._epoch for table in self._tables)

    def _tick(self) -> int:
        """The time of a use: after all before."""
        now = 1 + max(table._now for table in self._caches)
        for table in self._caches:
            table._now = now
        return now

    def _mark(self, slots: Int32[Tensor, "n"], changed: Tensor | None, now: int) -> None:
        with _fast(self._tables[0])._here():
            mark.mark(slots, self._used, changed, now)

    def _shares(self, keys: TableKeys) -> Iterator[tuple[Any, tuple[int, int]]]:
        return zip(self._tables, pairwise(keys.splits), strict=True)

    def _writing(self) -> AbstractContextManager[None]:
        return all_of([table._writing for table in self._tables])

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with ExitStack() as held:
            for table in self._tables:
                held.enter_context(table._moves.alone())
            yield

    @contextmanager
    def _unmoved(self) -> Iterator[None]:
        with ExitStack() as held:
            for table in self._tables:
                held.enter_context(table._moves.shared())
            yield


def _fast(table: CachingTable | HybridTable) -> DeviceTable:
    assert isinstance(table.fast, DeviceTable)
    return table.fast


def _places(table: CachingTable) -> DeviceCachePlaces:
    assert isinstance(table.places, DeviceCachePlaces)
    return table.places
