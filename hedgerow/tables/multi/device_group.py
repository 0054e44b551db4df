"""Tables on a device whose rows are alike, so that one launch serves all of them."""

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

_SAMPLE = 1 << 14  # slots of each table that say how old the oldest rows are
_EPOCH = attrgetter("slots.epoch")


class DeviceGroup:
    """The arrays of K alike tables in one piece; each table has its part of them, and one slot key.

    A table whose arrays are replaced (it was loaded, or room was reserved) leaves the group: from
    then on `whole` is False and every table is asked for itself.
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
        self._last = ((), torch.empty(0, dtype=torch.int64))  # splits, and where they are

    @staticmethod
    def alike(tables: Sequence[object]) -> bool:
        """Whether tables can be a group: rows, rules and kinds of first values are the same.

        One is a group, too: what is asked of it by the way is the same, and less.
        """
        kinds = {kind_of(table) for table in tables}
        return len(kinds) == 1 and None not in kinds

    @staticmethod
    def fits(buckets: Sequence[int]) -> bool:
        """Whether all slots together can be numbered in 32 bits, as those of one table are."""
        return (sum(buckets) + len(buckets)) * LANES < MAX_IDS

    def whole(self) -> bool:
        """Whether every table still has its part of the arrays, and none wants to be told more."""
        key = self._tables[0].slot_key
        for table, own in zip(self._tables, self._own, strict=True):  # all() takes twice as long
            if table.slots.arrays is not own or table.slots.slot_key != key:
                return False
            if table.feed.is_watched(learned=True):
                return False
        return True

    def epochs(self) -> tuple[object, ...]:
        """Another mark whenever a row of a table has moved."""
        return tuple(map(_EPOCH, self._tables))

    # ---- before a step

    def rates_at(
        self,
        sizes: Sequence[int],
        rates: Sequence[Sequence[Rate] | None] | None,
        step: int | None,
    ) -> list[float] | None:
        """The rates of all tables that have keys, given or their own; None if they differ.

        `sizes` are the keys of each table: of one without any nothing is asked. All others are: one
        may be wrong.
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
        """The time of a write for each table that has keys, 0 for the others."""
        if type(ts) is int and self._clock is not None and 0 <= ts <= self._clock.now_s():
            return [ts if n else 0 for n in sizes]  # no table would say otherwise
        return [
            table.stamps.next_time(ts) if n else 0
            for table, n in zip(self._tables, sizes, strict=True)
        ]

    def stamps(self, times: Sequence[int], sizes: Sequence[int]) -> list[int]:
        """The stamp of a write at these times for each table that has keys, 0 for the others."""
        order = self._tables[0].order
        if order is None:
            return list(times)
        with order.one_call(max(times), sum(sizes)):
            return [order.stamp(t) if n else 0 for t, n in zip(times, sizes, strict=True)]

    def begin(
        self, sizes: Sequence[int], times: Sequence[int] = (), *, moves: bool = False
    ) -> None:
        """What comes before a write of so many ids of each table, at these times if it has some.

        Rows may move by it, and have times then.
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
        """Rows into `out`; the slots, each within its table."""
        parts = self._parts if born else ()
        with self._tables[0].slots.on_device():
            return lookup.lookup(self._arrays, keys.ids, out, parts, keys.used, self._cuts(keys))

    def find_and_list(
        self, keys: TableKeys, room: int
    ) -> tuple[Int64[Tensor, "n"], incoming_rows.MissList]:
        """Slots, each within its table; and keys without a row, up to `room` of each table."""
        with self._tables[0].slots.on_device():
            return incoming_rows.find_and_list(self._arrays, keys.ids, self._cuts(keys), room)

    def read(
        self, keys: TableKeys, slots: Int64[Tensor, "n"], out: Float32[Tensor, "n dim"]
    ) -> None:
        """Rows of slots, each within its table, into `out`; of -1 zeros."""
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
        """One step on all tables; what each counted, which is added to what it has counted."""
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

    # ---- the step of a module: all features in one

    def features(
        self,
        tables: Sequence[int],
        places: Sequence[int],
        poolings: Sequence[str | tuple[str, int]],
    ) -> pool_features.Features:
        """Features of these tables, at these places among the names of a batch."""
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
        """The vectors of all features."""
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
        """The vectors of all features, see `pool_features`."""
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
        """The rows of all features, see `lookup.lookup_features`."""
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
        """Where a read found its rows, with slots within their tables."""
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
        """One step on all tables, in the slots of a read; False if they cannot.

        What it counts is added to what the tables have counted.
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
        """Where the rows are."""
        return self._tables[0].device

    def on_device(self) -> AbstractContextManager[object]:
        """Kernels of the block run on the device of the tables."""
        return self._tables[0].slots.on_device()

    def is_capturing(self) -> bool:
        """Whether a CUDA graph is being captured, in which nothing may be allocated anew."""
        return self._tables[0].is_capturing()

    def find(self, keys: TableKeys) -> Int64[Tensor, "n"]:
        """The slots of keys, each within its table; -1 = absent."""
        with self._tables[0].slots.on_device():
            return find.find(self._arrays, keys.ids, keys.used, self._cuts(keys))

    def numbered(
        self, keys: TableKeys, slots: Int64[Tensor, "n"], marks: runs.Marks | None = None
    ) -> Int32[Tensor, "n"]:
        """Slots as all tables together number them, marked if that is asked for; -1 stays."""
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
        """`step` on the rows of these slots alone: nothing is born."""
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
        """Rows that were found elsewhere come to ids that have none here.

        As `put_rows.put_rows`, with slots numbered through all tables.
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
        """Rows that may leave, `most` of each table, as `leave.choose_old` has them.

        They are about this share of the slots of each; of one without a share only those that
        stand where `crowded` keys find no lane, see `leave.single_out`. And rows and states of
        those that were changed. None is taken out.
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
        """The rows that were listed as changed are written elsewhere."""
        with self._tables[0].slots.on_device():
            leave.clean(chosen, changed)

    def take_out(
        self,
        chosen: leave.EvictionCandidates,
        used: Int32[Tensor, "slots"],
        changed: Bool[Tensor, "slots"],
        left: Int64[Tensor, "K"],
    ) -> None:
        """Chosen rows leave, see `leave.take_out`."""
        with self._tables[0].slots.on_device():
            leave.take_out(self._arrays, chosen, used, changed, left)

    def absent(
        self, keys: TableKeys, used: Int32[Tensor, "slots"], now: int, room: int | None
    ) -> incoming_rows.MissList:
        """Keys without a row, up to `room` of each table, or all; the others are `used` now.

        On any stream: those cuts that are kept are another's, who may replace them meanwhile.
        """
        with self._tables[0].slots.on_device():
            return incoming_rows.absent(self._arrays, keys.ids, _cuts_of(keys), used, now, room)

    def absent_slots(
        self, keys: TableKeys, slots: Int64[Tensor, "n"], room: int | None = None
    ) -> incoming_rows.MissList:
        """Keys whose slot is -1, up to `room` of each table, or all."""
        with self._tables[0].slots.on_device():
            return incoming_rows.absent_slots(keys.ids, slots, self._cuts(keys), room)

    def spread(self, dtype: torch.dtype) -> tuple[Tensor, list[Tensor]]:
        """Zeros for every slot of all tables, and the part of each table."""
        whole = torch.zeros(len(self._arrays.values), dtype=dtype, device=self._arrays.index.device)
        parts, at = [], 0
        for own in self._own:
            parts.append(whole[at : at + len(own.values)])
            at += (own.buckets + 1) * LANES
        return whole, parts

    def _cuts(self, keys: TableKeys) -> Int64[Tensor, "K+1"]:
        capturing = self._tables[0].is_capturing()  # a graph needs its own: those kept are replaced
        last = self._last  # once: another thread's call may replace it
        if last[0] == keys.splits and not capturing:  # most calls of a model have the same
            return last[1]
        cuts = _cuts_of(keys)
        if not capturing:
            self._last = (keys.splits, cuts)
        return cuts


def _cuts_of(keys: TableKeys) -> Int64[Tensor, "K+1"]:
    """Where the keys of each table begin and end, on their device."""
    return numbers_on(keys.splits, keys.ids.device)


def kind_of(table: object) -> object:
    """What must be the same; None for a table that is for itself."""
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
    """The parts of the first table, with the first values of all."""
    columns = zip(*(table.parts for table in tables), strict=True)
    return tuple(
        replace(own[0], draws=draws_of([part.first for part in own], tables[0].device))
        for own in columns
    )
