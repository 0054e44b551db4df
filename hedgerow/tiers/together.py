"""Alike tables of two tiers whose fast rows lie on one device, in steps of one launch for all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core import checks
from ..core.shapes import Float32, Int64
from ..tables.copies import host_room, to_device, to_host
from ..tables.host import lookup_several
from ..tables.leave_order import one_call
from ..tables.multi.device_group import DeviceGroup
from ..tables.schedules import Rate
from ..tables.store import Applied, Missing, TableKeys
from .caching import CachingTable
from .fetches import Fetches
from .found import Found, Rest, Told
from .hybrid import HybridTable
from .promotions import Promotions
from .two_tiers import share_locks


class Together:
    """One step for K tables, of one mode and of alike rows; owned by `TierTables`.

    What the device has is found and stepped there, table by table in one launch. The host is asked
    how many keys are not there, and for those alone. Where the tables' rows lie, and what else may
    be asked of them, is theirs: this only does what K calls of them would.
    """

    def __init__(self, tables: Sequence[CachingTable | HybridTable], group: DeviceGroup) -> None:
        self._tables, self._group = tables, group
        self.device = tables[0].device
        self.names = tuple(table.config.name for table in tables)
        share_locks(tables)
        self._writing, self._moves = tables[0]._writing, tables[0]._moves
        caches = [table for table in tables if isinstance(table, CachingTable)]
        hybrids = [table for table in tables if isinstance(table, HybridTable)]
        self._fetches = Fetches(caches, group) if caches else None
        self._promotions = Promotions(hybrids) if hybrids else None
        self._least_places = min(table.places.rows for table in tables)
        self._admits = any(table.config.admit is not None for table in tables)

    def can(self) -> bool:
        """Whether the tables can still be served by one launch."""
        return self._group.whole()

    @property
    def caches(self) -> bool:
        """Whether they are caches."""
        return self._fetches is not None

    # ---- reads

    def lookup(
        self,
        keys: TableKeys,
        out: Float32[Tensor, "n dim"],
        missing: Missing,
        step: int | None,
        batch: Int64[Tensor, "all"],
    ) -> Found:
        """Rows into `out`. With `missing="training"` rows come to caches, since an update follows.

        The caller has checked its arguments; `batch` is what the keys are part of.
        """
        fetches = self._fetches if missing == "training" else None
        if fetches is not None:
            if keys.splits[-1] > self._least_places:
                for table, (start, stop) in self._shares(keys):
                    if stop - start > table.places.rows:
                        table.check_distinct(keys.ids[start:stop])
            fetches.bring_ahead(batch)
        found = None
        while True:
            # No row moves between the two reads: one that came from behind a cache meanwhile would
            # be read there as it was.
            with self._moves.shared():
                if found is None:
                    found = self._look(keys, out, fetches)
                elif found.epoch != self._group.epochs():
                    found = replace(self._look(keys, out, fetches), asked=True)
                if fetches is None or found.asked or not found.absent:
                    found = self._read_rest(keys, found, out, missing, step)
                    break
            found = fetches.bring(keys, found, lambda old: self._now_found(keys, old), out)
        return found

    def _look(self, keys: TableKeys, out: Tensor, fetches: Fetches | None) -> Found:
        """Rows that are on the device into `out`; where keys are, listed if rows may come."""
        since = self._time()
        if fetches is not None:
            return fetches.lookup(keys, out, since)
        slots = self._group.lookup(keys, out, born=False)
        return self._told(keys, slots, since, listed=False)

    def prefetch(self, keys: TableKeys, batch: Int64[Tensor, "all"]) -> None:
        """Starts to read rows that caches lack of a batch to be looked up later."""
        if self._fetches is not None:
            self._fetches.ahead.add(keys, batch)

    def _read_rest(
        self, keys: TableKeys, found: Found, out: Tensor, missing: Missing, step: int | None
    ) -> Found:
        """Rows that are not on the device; counts the hits of the call."""
        if found.brought or not found.absent:
            for table, (start, stop) in self._shares(keys):
                if start < stop:
                    table.counters.add("fast_hits", stop - start)
            return found
        rest = found.rest_of(keys)
        there, sizes = self._read_slow(rest, out, missing, step), np.diff(rest.splits).tolist()
        for k, (table, (start, stop)) in enumerate(self._shares(keys)):
            table._count_hits(stop - start - sizes[k], there[k], stop - start)
        return replace(found, rest=rest)

    def _now_found(self, keys: TableKeys, found: Found | None) -> Found:
        """Where keys are: as found, unless rows have moved since."""
        if found is not None and found.epoch == self._group.epochs():
            return found
        # The mark of a move that is under way beside slots of before would make these believed.
        with self._moves.shared():
            since = self._time()
            return self._told(keys, self._group.find(keys), since, listed=True)

    def _told(
        self, keys: TableKeys, slots: Int64[Tensor, "n"], since: int, *, listed: bool
    ) -> Found:
        """With keys that caches lack `listed`, if they may have to come."""
        if self._fetches is not None and listed:
            return self._fetches.list_absent(keys, slots, since)
        return Found(slots, self._group.epochs(), Told((slots < 0).sum().view(1)))

    def _time(self) -> int:
        """Of uses: a row that comes from now on is not used before."""
        return 0 if self._fetches is None else self._fetches.now()

    def _read_slow(self, rest: Rest, out: Tensor, missing: Missing, step: int | None) -> list[int]:
        """Rows of the slow tier; how many of each table are there."""
        rows = host_room((len(rest.ids), out.shape[1]), torch.float32, self.device)
        there = [0] * len(self._tables)
        if self._fetches is None:
            slow = [table.slow for table in self._tables]
            found = lookup_several(slow, rest.ids, rest.splits, missing, step, rows)
            there = rest.counts(found)
        else:  # few, and some may be on their way back
            for k, share in rest.shares():
                self._tables[k]._read_slow(rest.ids[share], missing, step, rows[share])
                there[k] = int(self._tables[k]._in_slow(rest.ids[share]).sum())
        out.index_copy_(0, rest.at, to_device(rows, self.device))
        return there

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
        found = self._group.rates_at(_sizes(keys), rates, step)
        if self._admits or keys.splits[-1] > self._least_places:
            for table, (start, stop) in self._shares(keys):
                if start < stop and (
                    table.config.admit is not None or stop - start > table.places.rows
                ):
                    table.check_room(keys.ids[start:stop], step)
        return found

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
        found = self._now_found(keys, found)
        if self._fetches is not None:
            if not found.asked and found.absent:
                found = self._fetches.bring(keys, found, lambda old: self._now_found(keys, old))
            self._fetches.ahead.go_on()
        with self._writing:
            found = self._now_found(keys, found)
            sizes = _sizes(keys)
            # A table without keys in the call is not told of its time: rows would expire by it.
            times = [
                table.slow.next_time(ts) if n else 0
                for table, n in zip(self._tables, sizes, strict=True)
            ]
            with one_call(self._tables[0].slow.order, max(times), sum(sizes)):
                rest, done = None, []

                def step_rest() -> None:
                    nonlocal rest, done
                    if found.absent:
                        rest = found.rest_of(keys)
                        done = self._step_slow(
                            rest, grads, rates, step, times, counts, found.brought
                        )

                # What was brought and found no lane counts as on the device: nothing refuses it.
                # So the device, busy with those that came, is asked for it after its own step.
                if not found.brought:
                    step_rest()
                if self._fetches is None:
                    numbered = self._group.numbered(keys, found.slots)
                else:
                    now = self._fetches.tick()
                    numbered = self._fetches.mark(keys, found.slots, now, changed=True)
                stamps = self._group.stamps(times, sizes)
                self._group.begin(sizes, stamps)
                made = self._group.step_known(keys, numbered, grads, rates, max(stamps), step)
                for table, time in zip(self._tables, times, strict=True):
                    if time:
                        table.slow.saw(time)
                if found.brought:
                    step_rest()
                    if rest is not None and self._fetches is not None:
                        self._fetches.found_no_lane(rest)
                if self._promotions is not None:
                    self._promotions.after(keys, rest)
                counted = made.sum(dim=0)
        if self._fetches is not None:
            self._fetches.go_on()
        return Applied(sum((one.counts.to(self.device) for one in done), counted))

    def _step_slow(
        self,
        rest: Rest,
        grads: Tensor,
        rates: Sequence[float],
        step: int | None,
        times: Sequence[int],
        counts: Tensor | None,
        brought: bool,
    ) -> list[Applied]:
        """Of rows that were `brought` nothing is refused: they are treated as on the device.

        Gradients that are not finite are left out, counts below 1 are 1.
        """
        (own,) = to_host(grads[rest.at])
        seen = None if counts is None else counts[rest.at].cpu()
        if seen is not None and brought:
            seen = seen.clamp(min=1)
        calls = []
        for k, share in rest.shares():
            mine = None if seen is None else seen[share]
            slow, ids = self._tables[k].slow, rest.ids[share]
            checked = slow.update_arguments(ids, own[share], rates, step, mine, reject=not brought)
            calls.append((k, checked, mine))
        done = []
        for k, checked, mine in calls:  # all were asked before the first changes
            self._tables[k]._settle(checked[0])
            done.append(self._tables[k].slow.apply_checked(*checked, times[k], mine, False))
        return done

    # ---- helpers

    def _shares(self, keys: TableKeys) -> Iterator[tuple[Any, tuple[int, int]]]:
        return zip(self._tables, pairwise(keys.splits), strict=True)


def _sizes(keys: TableKeys) -> list[int]:
    """How many keys each table has."""
    return [stop - start for start, stop in pairwise(keys.splits)]
