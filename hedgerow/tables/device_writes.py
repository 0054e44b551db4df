"""The verbs of a table on a device that set, add, restore, reinitialize or erase rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock

import torch
from torch import Tensor

from ..core import checks
from ..core.errors import InputError, NotFiniteError, ServingTableError
from ..core.shapes import Bool, Float32, Int8, Int64
from ..kernels import assign, assign_add, erase, find, lookup
from ..kernels.first_values import first_values
from ..kernels.layout import Grouped, group
from .device_admission import DeviceAdmission, Sightings
from .device_room import DeviceRoom
from .store import Applied, Entries, TableKeys

_LEAST_SQUARE = 2.0**-126  # of a row that skip_zero_embedding keeps


class DeviceWrites(DeviceRoom):
    """The writing part of `DeviceTable`, without its step."""

    _admission: DeviceAdmission | None
    _restoring: Lock
    is_timed: bool

    def assign(
        self,
        keys: TableKeys | Int64[Tensor, "n"],
        rows: Float32[Tensor, "n dim"],
        *,
        ts: int = 0,
    ) -> Applied:
        """Sets rows. The last of equals wins. Waits for the device if `not_finite` is "reject"."""
        keys = self.checked_keys(keys)
        rows = self.checked_rows("rows", rows, len(keys.ids))
        usable = self.usable_rows(rows, keys.used)
        now, done = self._write(ts, len(keys.ids))
        with self.on_device():
            grouped = self._admitted(group(keys.ids), keys.used, done, self.stamps.second(now))
            if self.config.skip_zero_embedding:
                grouped = self._skip_zeros(grouped, keys.used, rows, usable, done)
            self._make_way(grouped, keys.used, usable, now, done)
            placed = self._placed(grouped, learned=False)
            assign.assign(
                *(self.arrays, grouped, rows, usable, self._starts, done, now, keys.used),
                placed=placed,
            )
            self._note(grouped, placed, use=now, used=keys.used)
        return self._done(done)

    def assign_add(
        self,
        keys: TableKeys | Int64[Tensor, "n"],
        rows: Float32[Tensor, "n dim"],
        *,
        ts: int = 0,
    ) -> Applied:
        """Adds to rows; an absent one starts from its first value (serving tables: zeros).

        Waits for the device if `not_finite` is "reject".
        """
        keys = self.checked_keys(keys)
        rows = self.checked_rows("rows", rows, len(keys.ids))
        usable = self.usable_rows(rows, keys.used)
        now, done = self._write(ts, len(keys.ids))
        with self.on_device():
            grouped = self._admitted(group(keys.ids), keys.used, done, self.stamps.second(now))
            self._make_way(grouped, keys.used, usable, now, done)
            begun = torch.empty_like(rows)
            lookup.lookup(self.arrays, grouped.ids, begun, self.parts)
            placed = self._placed(grouped, learned=False)
            assign_add.assign_add(
                *(self.arrays, grouped, rows, usable, begun, self._starts),
                *(done, now, keys.used, placed),
            )
            self._note(grouped, placed, use=now, used=keys.used)
        return self._done(done)

    def restore(self, entries: Entries) -> Applied:
        """Puts whole rows back: embedding, states and times as `entries` or `scan` gave them.

        The entries may lie anywhere. Threads may restore together, which a load does.
        """
        given = entries.to("cpu")
        n = len(given.ids)
        checks.tensor("ids", given.ids, torch.int64, (None,))
        checks.tensor("found", given.found, torch.bool, (n,))
        checks.tensor("ts", given.ts, torch.int64, (n,))
        checks.tensor("rows", given.rows, torch.float32, (n, self.config.dim))
        if not given.found.numpy().all():
            raise InputError("entries holds ids that were not found; select those with found True.")
        if n and int(given.ts.min()) < 0:
            raise InputError(f"ts holds {int(given.ts.min())}; a time is at least 0.")
        states: Sequence[Mapping[str, Tensor]] = given.states
        if self.config.serving:
            states = [{} for _ in self.config.segments]
        raw, ts = self.layout.join(states, n), self.stamps.stamps_of(given)
        newest = int(ts.max()) if n else 0
        with self._restoring, self.on_device():
            ids, rows, raw, ts = (x.to(self.device) for x in (given.ids, given.rows, raw, ts))
            return self._restore(ids, rows, raw, ts, newest)

    def _restore(self, ids: Tensor, rows: Tensor, raw: Tensor, ts: Tensor, newest: int) -> Applied:
        usable = self.usable_rows(rows, None)
        self.begin_at(newest, len(ids))
        self._oldest_s, done = 0, self._nothing_done()  # times of all kinds
        grouped = group(ids)
        if self.config.skip_zero_embedding:
            grouped = self._skip_zeros(grouped, None, rows, usable, done)
        placed = self._placed(grouped, learned=False)
        assign.assign(
            *(self.arrays, grouped, rows, usable, self._starts, done, 0, None, raw, ts),
            placed=placed,
        )
        self._note(grouped, placed)
        return self._done(done)

    def reinitialize(self, keys: TableKeys | Int64[Tensor, "n"]) -> Int8[Tensor, "n"]:
        """Makes rows as new, at the clock's time; 0 = was absent, 1 = was there.

        An id that finds no room stays absent: 0.
        """
        self.refuse_serving("reinitialize")
        keys = self.checked_keys(keys)
        n = len(keys.ids)
        newest_s = self._max_ts  # the clock's time is not one that a write gave
        now, done = self._write(self.clock.now_s(), n, uses=0)
        self._max_ts = newest_s
        with self.on_device():
            before = find.find(self.arrays, keys.ids, keys.used) >= 0
            grouped = group(keys.ids)
            new = [first_values(keys.ids, p.dim, p.first, p.start) for p in self.parts]
            states = self._starts.expand(n, -1).contiguous()
            usable = torch.ones_like(before)
            placed = torch.empty_like(grouped.ids)
            assign.assign(
                *(self.arrays, grouped, torch.cat(new, dim=1), usable, self._starts, done),
                *(now, keys.used, states, None, placed),
            )
            self._note(grouped, placed, learned=True, use=0)
            seen = Sightings.of(grouped, keys.used, None)
            again = torch.empty_like(before).scatter_(0, _order(grouped), seen.number > 0)
            there = find.find(self.arrays, keys.ids, keys.used) >= 0
        self._done(done)
        return (there & (before | again)).to(torch.int8)

    def erase(self, keys: TableKeys | Int64[Tensor, "n"]) -> Bool[Tensor, "n"]:
        """Removes rows and says which were there. Their places serve the next new ids."""
        keys = self.checked_keys(keys)
        with self.on_device():
            erased = self._erase(keys.ids, group(keys.ids), keys.used)
        self._totals[3] += erased.sum()
        return erased

    def clear(self) -> None:
        """Removes all rows; their memory stays the table's."""
        self.before_change()
        self.epoch = object()
        self.arrays.clear()
        self._oldest_s = None
        self.mark_all()

    # ---- inside

    def _erase(self, ids: Tensor, grouped: Grouped, used: Tensor | None) -> Bool[Tensor, "n"]:
        self.before_change()
        self.epoch = object()  # a slot that a lookup told may be another id's by the next update
        erased = erase.erase(self.arrays, grouped, used)
        self._mark(ids, erased)
        return erased

    def _write(self, ts: int, n: int, *, uses: int | None = None) -> tuple[int, Int64[Tensor, "3"]]:
        """The stamp of a call that may bring `n` ids, and room for what it counts."""
        now = self.stamps.stamp(ts, n if uses is None else uses)
        return self.begin_at(now, n), self._nothing_done()

    def _nothing_done(self) -> Int64[Tensor, "3"]:
        """Room for what a call counts."""
        self._kept_out = None
        return torch.zeros(3, dtype=torch.int64, device=self.device)

    def begin_at(self, now: int, n: int) -> int:
        """What comes before every write of `n` ids with this stamp."""
        self.before_change()
        self._make_room(n)
        self._max_ts = max(self._max_ts, self.stamps.second(now))
        self.is_timed |= now > 0
        if n:
            self._oldest_s = now if self._oldest_s is None else min(self._oldest_s, now)
            if self.is_capturing():
                self._captured_s = [min([now, *self._captured_s])]
        return now

    def _done(self, done: Int64[Tensor, "3"]) -> Applied:
        self._totals[:3] += done
        if self.full == "raise":
            self._raise_if_full(done)
        return Applied(done)

    def usable_rows(self, rows: Tensor, used: Tensor | None) -> Bool[Tensor, "n"]:
        """Which rows are finite; raises for those that are not where the table says so."""
        usable = rows.isfinite().all(dim=1)
        if self.config.not_finite != "reject":
            return usable
        wrong = ~usable
        if used is not None:
            wrong &= torch.arange(len(usable), device=self.device) < used
        if bool(wrong.any()):
            raise NotFiniteError(
                f"rows[{int(wrong.nonzero()[0])}] is not finite; table {self.config.name!r} "
                f"rejects that, and nothing was changed. Find its source, or make the table with "
                f"not_finite='drop'."
            )
        return usable

    def _admitted(
        self,
        grouped: Grouped,
        used: Tensor | None,
        done: Int64[Tensor, "3"],
        step: int,
        counts: Tensor | None = None,
    ) -> Grouped:
        """The groups that have a row or may have one; the others become room."""
        if self._admission is None:
            return grouped
        seen = Sightings.of(grouped, used, counts)
        absent = find.find(self.arrays, grouped.ids) < 0
        refused = self._admission.refused(seen, absent, step, each=False)
        self._keep_out(refused, done)
        return _without(grouped, refused)

    def _make_way(
        self, grouped: Grouped, used: Tensor | None, usable: Tensor, now: int, done: Tensor
    ) -> None:
        """Rows leave for the ids of a call that have something to write, if the table is full."""
        if self.full != "evict":
            return
        seen = Sightings.of(grouped, used, None)
        good = seen.live & usable[_order(grouped).clamp(max=len(usable) - 1)]
        self._give_way(grouped, seen.total(good.long()) > 0, now, done)

    def _skip_zeros(
        self, grouped: Grouped, used: Tensor | None, rows: Tensor, usable: Tensor, done: Tensor
    ) -> Grouped:
        """Takes rows of zeros out of the table instead of setting them; gives the other groups."""
        seen, order = Sightings.of(grouped, used, None), _order(grouped)
        source = torch.where(seen.live & usable[order], order, -1)
        winner = torch.full_like(source, -1).scatter_reduce_(0, seen.start, source, "amax")
        winner = winner[seen.start]
        small = (rows * rows).sum(dim=1) < _LEAST_SQUARE
        skipped = seen.live & (winner >= 0) & small[winner.clamp(min=0)]
        done[2] += (skipped & ~usable[order]).sum()
        ids = torch.empty_like(grouped.ids).scatter_(0, order, grouped.ids)
        erased = self._erase(ids, _without(grouped, ~skipped), used)
        self._totals[3] += erased.sum()
        return _without(grouped, skipped)

    def refuse_serving(self, verb: str) -> None:
        """Raises if the table only serves."""
        if self.config.serving:
            raise ServingTableError(
                f"{verb} on the serving table {self.config.name!r}; only training tables learn. "
                f"Use assign, or make the table with serving=False."
            )


def _order(grouped: Grouped) -> Int64[Tensor, "n"]:
    if grouped.order is None:
        return torch.arange(len(grouped.ids), device=grouped.ids.device)
    return grouped.order


def _without(grouped: Grouped, which: Bool[Tensor, "n"]) -> Grouped:
    """Grouped ids, some of which count as room: those come from behind the end of the input."""
    return Grouped(grouped.ids, torch.where(which, len(grouped.ids), _order(grouped)))
