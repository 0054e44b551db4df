"""`DeviceGroup`: tables on a device with equal row layouts, which share kernel launches."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import accumulate, pairwise
from operator import attrgetter

import torch
from torch import Tensor

from ...core.shapes import Bool, Float32, Int32, Int64
from ...kernels import find, incoming_rows, leave, lookup, pool_features, runs
from ...kernels import step as steps
from ...kernels.incoming_rows import IncomingRows
from ...kernels.layout import LANES, NO_STEP, Arrays, RowSegment, draws_of
from ...kernels.output_gradients import Occurrences, OutputGradients
from ..device import DeviceTable
from ..device_slots import MAX_IDS
from ..optimizers import Rate
from ..store import Lookup, TableKeys
from ..transfer import numbers_on
from .device_bags import BagsOfFeatures, OutputRows

_SAMPLE = 1 << 14  # slots sampled per table to estimate the age of the oldest rows
_EPOCH = attrgetter("slots.epoch")


class DeviceGroup:
    """K alike tables in one set of arrays.

    Each table has a part of the arrays; all share one slot key. A table whose arrays are replaced,
    by a load or by `reserve`, leaves the group. From then on `whole` returns False, and the store
    calls each table separately.
    """

    def __init__(self, tables: Sequence[DeviceTable], buckets: Sequence[int]) -> None:
        self._tables = tables
        first = tables[0]
        states = first.layout.state_floats
        several = Arrays.make_several(buckets, first.config.dim, first.device, states)
        self._arrays = replace(several, marked=first.order is not None)
        at = 0
        for table, count in zip(tables, buckets, strict=True):
            rows = self._arrays.values[at * LANES : (at + count) * LANES + 2]
            own = self._arrays.index[at : at + count + 1]
            arrays = Arrays(own, rows, first.config.dim, marked=self._arrays.marked)
            table.use_arrays(arrays, first.slot_key)
            table.share_order(first.order)
            at += count + 1
        self._own = [table.arrays for table in tables]
        self._totals = torch.zeros(
            len(tables), len(first.slots.totals), dtype=torch.int64, device=first.device
        )
        for table, own in zip(tables, self._totals, strict=True):
            table.slots.totals = own
        self._counted = self._totals[:, :3]
        self._parts = _common_parts(tables)
        self._same_rates = all(table.rates == first.rates for table in tables)
        one_clock = all(table.clock is first.clock for table in tables)
        self._clock = first.clock if one_clock else None
        self._last = ((), torch.empty(0, dtype=torch.int64))  # splits, also on the device

    @staticmethod
    def alike(tables: Sequence[object]) -> bool:
        """Returns whether tables can form a group: equal layouts, rules and kinds of initializers.

        A single table can be a group, too: a step then has fewer checks.
        """
        kinds = {kind_of(table) for table in tables}
        return len(kinds) == 1 and None not in kinds

    @staticmethod
    def fits(buckets: Sequence[int]) -> bool:
        """Returns whether all slots together can be numbered in 32 bits."""
        return (sum(buckets) + len(buckets)) * LANES < MAX_IDS

    def whole(self) -> bool:
        """Returns whether every table has its part of the arrays and no open change feed."""
        key = self._tables[0].slot_key
        for table, own in zip(self._tables, self._own, strict=True):  # all() takes twice as long
            if table.slots.arrays is not own or table.slots.slot_key != key:
                return False
            if table.feed.is_watched(learned=True):
                return False
        return True

    def epochs(self) -> tuple[object, ...]:
        """Returns the epochs of the tables; they change whenever a row may have moved."""
        return tuple(map(_EPOCH, self._tables))

    # ---- before a step

    def rates_at(
        self,
        sizes: Sequence[int],
        rates: Sequence[Sequence[Rate] | None] | None,
        step: int | None,
    ) -> list[float] | None:
        """Returns the common rates of all tables that have keys; None if they differ.

        The rates are `rates`, or the tables' own.

        `sizes` are the numbers of keys of each table. Tables without keys are not checked; all
        others are, because one may raise.
        """
        found: list[list[float]] = []
        given = rates is not None and any(one is not None for one in rates)
        for k, (table, n) in enumerate(zip(self._tables, sizes, strict=True)):
            if n:
                found.append(table.rates_at(None if rates is None else rates[k], step)[0])
                if self._same_rates and not given:
                    break
        return found[0] if found and found.count(found[0]) == len(found) else None

    def times(self, ts: int, sizes: Sequence[int]) -> list[int]:
        """Returns the time of a write for each table that has keys, and 0 for the others."""
        if type(ts) is int and self._clock is not None and 0 <= ts <= self._clock.now_s():
            return [ts if n else 0 for n in sizes]  # every table would return the same
        return [
            table.stamps.next_time(ts) if n else 0
            for table, n in zip(self._tables, sizes, strict=True)
        ]

    def stamps(self, times: Sequence[int], sizes: Sequence[int]) -> list[int]:
        """Returns the stamp of a write for each table that has keys, and 0 for the others."""
        order = self._tables[0].order
        if order is None:
            return list(times)
        with order.one_call(max(times), sum(sizes)):
            return [order.stamp(t) if n else 0 for t, n in zip(times, sizes, strict=True)]

    def begin(
        self, sizes: Sequence[int], times: Sequence[int] = (), *, moves: bool = False
    ) -> None:
        """Does what precedes a write of `sizes` ids per table, at `times` if given.

        With `moves`, rows may move and may bring times.
        """
        for k, (table, n) in enumerate(zip(self._tables, sizes, strict=True)):
            if not n:
                continue
            table.writes.begin(times[k] if times else 0, n)
            if moves:
                table.times.is_timed = True
                table.slots.moved()

    # ---- the step

    def lookup(self, keys: TableKeys, out: Float32[Tensor, "n dim"], *, born: bool) -> Tensor:
        """Writes rows to `out`; returns the slots, numbered within each table."""
        parts = self._parts if born else ()
        with self._tables[0].slots.on_device():
            return lookup.lookup(self._arrays, keys.ids, out, parts, keys.used, self._cuts(keys))

    def find_and_list(
        self, keys: TableKeys, room: int
    ) -> tuple[Int64[Tensor, "n"], incoming_rows.MissList]:
        """Returns slots within their tables, and up to `room` keys without a row per table."""
        with self._tables[0].slots.on_device():
            return incoming_rows.find_and_list(self._arrays, keys.ids, self._cuts(keys), room)

    def read(
        self, keys: TableKeys, slots: Int64[Tensor, "n"], out: Float32[Tensor, "n dim"]
    ) -> None:
        """Writes the rows of slots, numbered within each table, to `out`; -1 gives zeros."""
        with self._tables[0].slots.on_device():
            lookup.read(self._arrays, slots, out, self._cuts(keys))

    def step(
        self,
        keys: TableKeys,
        grads: Float32[Tensor, "n dim"],
        rates: Sequence[float],
        now: int,
        slots: Int64[Tensor, "n"] | None,
        at_step: int | None,
    ) -> Int64[Tensor, "K 3"]:
        """Applies one step to all tables; returns and adds up their counters."""
        done = torch.zeros(len(self._tables), 3, dtype=torch.int64, device=keys.ids.device)
        with self._tables[0].slots.on_device():
            steps.step(
                *(self._arrays, keys.ids, grads, done, self._parts, rates, now),
                slots=slots,
                used=keys.used,
                splits=self._cuts(keys),
                at_step=NO_STEP if at_step is None else at_step,
            )
            self._counted.add_(done)
        return done

    # ---- the step of a module: all features in one launch

    def features(
        self,
        tables: Sequence[int],
        places: Sequence[int],
        poolings: Sequence[str | tuple[str, int]],
    ) -> pool_features.Features:
        """Returns the features of these tables, at these positions among the names of a batch."""
        return pool_features.Features.of(self._arrays, self._parts, tables, places, poolings)

    def pooled_features(
        self,
        features: pool_features.Features,
        keys: TableKeys,
        bags: BagsOfFeatures,
        *,
        training: bool,
        step: int,
    ) -> OutputRows:
        """Returns the vectors of all features."""
        del step
        made = self.pool(features, keys, bags, born=training)
        return OutputRows(made.vectors, made.at, (made.slots, self.epochs()))

    def pool(
        self,
        features: pool_features.Features,
        keys: TableKeys,
        bags: BagsOfFeatures,
        known: pool_features.Known | None = None,
        *,
        born: bool = False,
    ) -> pool_features.Pooled:
        """Returns the vectors of all features; see `pool_features`."""
        parts = self._parts if born else ()
        with self._tables[0].slots.on_device():
            return pool_features.pool_features(
                *(self._arrays, features, keys.ids, bags.offsets, bags.shifts, bags.samples),
                *(bags.weights, parts, known),
            )

    def rows_of_features(
        self,
        features: pool_features.Features,
        keys: TableKeys,
        borders: Int64[Tensor, "F+1"],
        sizes: Sequence[int],
        *,
        training: bool,
        step: int,
    ) -> OutputRows:
        """Returns the rows of all features; see `lookup.lookup_features`."""
        del step
        out = torch.empty(
            len(keys.ids), self._arrays.dim, dtype=torch.float32, device=keys.ids.device
        )
        room = max(sizes, default=0)
        ragged = room if any(size != room for size in sizes) else None
        parts = features.parts if training else ()
        with self._tables[0].slots.on_device():
            slots, rows = lookup.lookup_features(
                self._arrays, features.spans, keys.ids, out, parts, borders, ragged
            )
        return OutputRows(out, Occurrences(room, rows), (slots, self.epochs()))

    def lookup_of(self, keys: TableKeys, found: tuple[Tensor, object]) -> Lookup:
        """Returns where a read found its rows, with slots numbered within each table."""
        slots, epochs = found
        rows = torch.empty(0, dtype=torch.float32, device=keys.ids.device)
        dims = tuple(table.config.dim for table in self._tables)
        return Lookup(keys, rows, dims, self._arrays.within(slots, self._cuts(keys)), epochs)

    def learn(
        self,
        keys: TableKeys,
        found: tuple[Int32[Tensor, "n"], object],
        grads: OutputGradients,
        *,
        step: int,
        ts: int,
    ) -> bool:
        """Applies one step to all tables at the slots of a read; returns False if they cannot.

        The counters of the tables include the step.
        """
        slots, epochs = found
        sizes = [stop - start for start, stop in pairwise(keys.splits)]
        rates = self.rates_at(sizes, None, step)
        if rates is None or not self.whole():
            return False
        known = slots if epochs == self.epochs() else None
        times = self.stamps(self.times(ts, sizes), sizes)
        self.begin(sizes, times)
        with self._tables[0].slots.on_device():
            steps.step(
                *(self._arrays, keys.ids, grads, self._counted, self._parts, rates, max(times)),
                slots=known,
                splits=self._cuts(keys),
                at_step=step,
            )
        return True

    @property
    def device(self) -> torch.device:
        """The device of the rows."""
        return self._tables[0].device

    def on_device(self) -> AbstractContextManager[object]:
        """Returns a context that makes the tables' device the current one, for kernel launches."""
        return self._tables[0].slots.on_device()

    def is_capturing(self) -> bool:
        """Returns whether a CUDA graph is being captured; memory must not be allocated then."""
        return self._tables[0].is_capturing()

    def find(self, keys: TableKeys) -> Int64[Tensor, "n"]:
        """Returns the slots of keys, numbered within each table; -1 = absent."""
        with self._tables[0].slots.on_device():
            return find.find(self._arrays, keys.ids, keys.used, self._cuts(keys))

    def numbered(
        self, keys: TableKeys, slots: Int64[Tensor, "n"], marks: runs.Marks | None = None
    ) -> Int32[Tensor, "n"]:
        """Returns slots numbered over all tables, with `marks` set if given; -1 stays -1."""
        with self._tables[0].slots.on_device():
            cuts = self._cuts(keys)
            return runs.seat(self._arrays, keys.ids, slots, None, cuts, insert=False, marks=marks)

    def step_known(
        self,
        keys: TableKeys,
        numbered: Int32[Tensor, "n"],
        grads: Float32[Tensor, "n dim"] | OutputGradients,
        rates: Sequence[float],
        now: int,
        at_step: int | None,
    ) -> Int64[Tensor, "K 3"]:
        """Applies a step only to the rows of these slots; inserts nothing."""
        done = torch.zeros(len(self._tables), 3, dtype=torch.int64, device=keys.ids.device)
        cuts = self._cuts(keys)
        with self._tables[0].slots.on_device():
            batch = runs.runs(self._arrays, numbered, keys.ids, done, cuts)
            steps.update(
                *(self._arrays, keys.ids, batch, grads, done, self._parts, rates, now, cuts),
                at_step=NO_STEP if at_step is None else at_step,
            )
            self._counted.add_(done)
        return done

    def put(
        self,
        coming: IncomingRows,
        uses: incoming_rows.ArrivalCounts,
        now: int,
        waiting: incoming_rows.WaitingBatch | None,
    ) -> Int32[Tensor, "n"]:
        """Inserts rows from another store for ids that have no row here.

        Works as `incoming_rows.put_rows`, with slots numbered over all tables.
        """
        with self._tables[0].slots.on_device():
            return incoming_rows.put_rows(self._arrays, coming, uses, now, waiting)

    def old_rows(
        self,
        used: Int32[Tensor, "slots"],
        changed: Bool[Tensor, "slots"],
        shares: Sequence[float],
        most: Sequence[int],
        *,
        limit: int,
        turn: int,
        crowded: TableKeys | None = None,
    ) -> tuple[
        leave.EvictionCandidates, Float32[Tensor, "room dim"], Float32[Tensor, "room floats"]
    ]:
        """Lists rows that may be evicted, at most `most` of each table; see `leave.choose_old`.

        `shares` are the shares of each table's slots to list. A table with share 0 lists only rows
        in buckets where `crowded` keys find no lane; see `leave.single_out`. The result also holds
        the rows and states of the listed rows that have `changed`. No row is removed.
        """
        starts, device = (0, *accumulate(most)), self._arrays.index.device
        buckets = [own.buckets for own in self._own]
        sample = min(_SAMPLE, 1 << (LANES * max(buckets) - 1).bit_length())
        ranks = [
            max(0, round(share * min(sample, LANES * count)) - 1) if share else -1
            for share, count in zip(shares, buckets, strict=True)
        ]
        numbers = numbers_on([*starts, *ranks], device)
        with self._tables[0].slots.on_device():
            ages = leave.oldest(self._arrays, used, numbers[len(starts) :], sample=sample)
            chosen = leave.choose_old(
                *(self._arrays, used, changed, ages, numbers[: len(starts)]),
                room=starts[-1],
                buckets=max(buckets),
                limit=limit,
                turn=turn,
            )
            if crowded is not None:
                leave.single_out(
                    *(self._arrays, chosen, crowded.ids, _cuts_of(crowded), ages, used, changed)
                )
            rows = lookup.gather(self._arrays, chosen.dirty)
            raw = lookup.gather(self._arrays, chosen.dirty, self._tables[0].layout.state_floats)
        return chosen, rows, raw

    def clean(self, chosen: leave.EvictionCandidates, changed: Bool[Tensor, "slots"]) -> None:
        """Records that the listed changed rows are written back."""
        with self._tables[0].slots.on_device():
            leave.clean(chosen, changed)

    def take_out(
        self,
        chosen: leave.EvictionCandidates,
        used: Int32[Tensor, "slots"],
        changed: Bool[Tensor, "slots"],
        left: Int64[Tensor, "K"],
    ) -> None:
        """Removes chosen rows; see `leave.take_out`."""
        with self._tables[0].slots.on_device():
            leave.take_out(self._arrays, chosen, used, changed, left)

    def absent(
        self, keys: TableKeys, used: Int32[Tensor, "slots"], now: int, room: int | None
    ) -> incoming_rows.MissList:
        """Returns keys without a row; marks the others as `used` now.

        `room` is the largest number of keys per table; None returns all.

        It may run on any stream. It does not use the cached splits, which another thread may
        replace.
        """
        with self._tables[0].slots.on_device():
            return incoming_rows.absent(self._arrays, keys.ids, _cuts_of(keys), used, now, room)

    def absent_slots(
        self, keys: TableKeys, slots: Int64[Tensor, "n"], room: int | None = None
    ) -> incoming_rows.MissList:
        """Returns keys whose slot is -1, up to `room` of each table, or all."""
        with self._tables[0].slots.on_device():
            return incoming_rows.absent_slots(keys.ids, slots, self._cuts(keys), room)

    def spread(self, dtype: torch.dtype) -> tuple[Tensor, list[Tensor]]:
        """Returns zeros for every slot of all tables, and the part of each table."""
        whole = torch.zeros(len(self._arrays.values), dtype=dtype, device=self._arrays.index.device)
        parts, at = [], 0
        for own in self._own:
            parts.append(whole[at : at + len(own.values)])
            at += (own.buckets + 1) * LANES
        return whole, parts

    def _cuts(self, keys: TableKeys) -> Int64[Tensor, "K+1"]:
        capturing = self._tables[0].is_capturing()  # a graph keeps its own: the cache changes
        last = self._last  # read once: another thread's call may replace it
        if last[0] == keys.splits and not capturing:  # most calls of a model have the same splits
            return last[1]
        cuts = _cuts_of(keys)
        if not capturing:
            self._last = (keys.splits, cuts)
        return cuts


def _cuts_of(keys: TableKeys) -> Int64[Tensor, "K+1"]:
    """Returns the offsets of the tables in the keys, on the keys' device."""
    return numbers_on(keys.splits, keys.ids.device)


def kind_of(table: object) -> object:
    """Returns what must be equal in a group; None for a table that cannot be in a group."""
    if not isinstance(table, DeviceTable) or table.full != "refuse" or table.config.serving:
        return None
    if table.config.admit is not None or table.arrays.lines != 2:
        return None
    parts = (
        (part.start, part.dim, part.state, part.rule, part.first.kind, *part.numbers.tolist())
        for part in table.parts
    )
    key = table.config.slot_key
    return table.order is not None, table.config.dim, table.layout.state_floats, key, *parts


def _common_parts(tables: Sequence[DeviceTable]) -> tuple[RowSegment, ...]:
    """Returns the parts of the first table, with the initial values of all tables."""
    columns = zip(*(table.parts for table in tables), strict=True)
    return tuple(
        replace(own[0], draws=draws_of([part.first for part in own], tables[0].device))
        for own in columns
    )
