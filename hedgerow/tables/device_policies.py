"""Admission and eviction in a device table: which absent ids get a row, and which rows leave."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import checks
from ..core.counters import Counters
from ..core.errors import ConfigError, DtypeError, InputError, TableFullError
from ..core.hashing import signed64, slot_of
from ..core.shapes import Bool, Float64, Int64
from ..kernels.admission import add_counts, counts_of, draws
from ..kernels.assign import assign
from ..kernels.evict import insert_and_evict
from ..kernels.layout import (
    EVICTED,
    INSERTED,
    MARK,
    RECLAIMED,
    TIMES,
    Cells,
    Grouped,
    group,
    mix_of,
)
from .admission import (
    CAPACITY_IDS,
    MAX_COUNT,
    SPLIT_NUM,
    AdmissionQuestion,
    FilterMeta,
    FilterState,
    check_reachable,
    check_sizes,
    table_key,
)
from .config import TableConfig
from .device_slots import DeviceFeed, DeviceSlots, RowTimes
from .eviction import SLOTS, Evicted, Lfu, Lru, Ttl, WriteStamps, expired
from .slot_key import check_slot_key, slot_key_of

_MAX_SPLITS = 2**15  # 16 bits tell the turns of a window apart
_SPREAD = 0x9E3779B97F4A7C15  # gives different salts to similar seeds


@dataclass(frozen=True)
class DeviceFilterMeta(FilterMeta):
    """Describes the state of a `DeviceFilter`: the cells in use and their places."""

    kind = "device_filter"


class DeviceFilter:
    """Counts ids over about the last `capacity_ids` distinct ids, without waiting for the device.

    It gives the same answers as `SlidingFilter`, except that its window advances between calls
    only. It allocates all its memory when it is made: 10 bytes per id of the capacity, which is 3
    GB by default. To use less, give the rule a smaller window, for example `Within(10_000_000, 3)`.
    Not thread-safe; use it on one stream. The `slot_key` determines in which cells ids are counted.
    It is drawn at random unless given, and is part of the state.
    """

    def __init__(
        self,
        *,
        capacity_ids: int = CAPACITY_IDS,
        split_num: int = SPLIT_NUM,
        seed: int = 0,
        max_count: int = MAX_COUNT,
        device: torch.device | str = "cuda",
        slot_key: int | None = None,
    ) -> None:
        check_slot_key("DeviceFilter", slot_key)
        check_sizes("DeviceFilter", capacity_ids, split_num)
        checks.whole("DeviceFilter", "max_count", max_count, least=1)
        if max_count > MAX_COUNT or split_num > _MAX_SPLITS:
            raise ConfigError(
                f"DeviceFilter has max_count {max_count} and split_num {split_num}; at most "
                f"{MAX_COUNT} and {_MAX_SPLITS}."
            )
        self.capacity_ids, self.split_num = capacity_ids, split_num
        self.seed, self.max_count = seed, max_count
        self.tables: set[str] = set()  # names of the tables that count their ids here
        self.device = torch.empty(0, device=device).device  # adds the device number
        self._slot_key = slot_key_of(slot_key)
        self._cells = Cells.make(
            capacity_ids, split_num - 2, max_count, self.device, self._slot_key
        )

    def __repr__(self) -> str:
        return (
            f"DeviceFilter(capacity_ids={self.capacity_ids}, split_num={self.split_num}, "
            f"seed={self.seed}, max_count={self.max_count}, device={str(self.device)!r})"
        )

    def counts(
        self, ids: Int64[Tensor, "n"], asked: Bool[Tensor, "n"] | None = None, *, table: str
    ) -> Int64[Tensor, "n"]:
        """Returns the counts of ids, 0 for ids that are not `asked`. Counts nothing."""
        checks.tensor("ids", ids, torch.int64, (None,), self.device)
        return counts_of(self._cells, ids, self._asked(ids, asked), self._salt(table))

    def add(
        self,
        ids: Int64[Tensor, "n"],
        asked: Bool[Tensor, "n"] | None = None,
        *,
        table: str,
        counts: Int64[Tensor, "n"] | None = None,
    ) -> Bool[Tensor, "n"]:
        """Counts distinct ids, once or `counts` times; returns False for ids that found no cell.

        A count below 1 is taken as 1. `SlidingFilter` refuses it, but that would wait for the
        device.
        """
        checks.tensor("ids", ids, torch.int64, (None,), self.device)
        added = torch.ones_like(ids) if counts is None else counts.clamp(min=1)
        stored = add_counts(self._cells, ids, self._asked(ids, asked), added, self._salt(table))
        state = self._cells.state
        full = state[1] + 1 >= self.capacity_ids // (self.split_num - 1)
        state[0] += full
        state[1].mul_(~full)
        return stored

    @property
    def head_increment(self) -> int:
        """How often the window advanced; waits for the device."""
        return int(self._cells.state[0])

    @property
    def failures(self) -> int:
        """The number of ids that found no cell; waits for the device."""
        return int(self._cells.state[2])

    def memory_bytes(self) -> int:
        """Returns the bytes of all cells."""
        return self._cells.cells.nbytes

    def meta(self) -> DeviceFilterMeta:
        """Returns the description of the state, without its arrays; waits for the device."""
        return self._meta(0)

    def clear(self) -> None:
        """Forgets all ids of all tables; the filter keeps its memory."""
        self._cells.cells.zero_()
        self._cells.state[:3] = 0

    def dump(self) -> FilterState:
        """Returns all cells in use and their places, copied to host memory."""
        cells = self._cells.cells.cpu()
        places = cells.nonzero()[:, 0]
        arrays = (places, cells[places])
        return FilterState(self._meta(len(places)), tuple(x.view(torch.uint8) for x in arrays))

    def restore(self, state: FilterState) -> None:
        """Restores a state that a filter with equal settings dumped.

        If the state is damaged, it raises an error and the filter does not change.
        """
        mine, given = self.meta().settings(), state.meta.settings()
        if not isinstance(state.meta, DeviceFilterMeta) or mine != given:
            raise InputError(
                f"the state is of another filter, {given}, not {mine}; counts cannot be carried "
                f"over. Make the filter with the state's settings, or start with empty counts."
            )
        places, cells = (array.clone().view(torch.int64) for array in state.arrays)
        most = len(self._cells.cells)
        if len(places) != len(cells) or not bool(((places >= 0) & (places < most)).all()):
            raise InputError("the state is damaged: cells beyond the filter's end.")
        if not bool(((cells & 0xFF) != 0).all()):
            raise InputError("the state is damaged: a cell has no count.")
        turn = state.meta.head_increment
        head = int((((cells >> 8) & 0xFFFF) == turn & 0xFFFF).sum())
        self._cells.cells.zero_()
        self._cells.cells[places.to(self.device)] = cells.to(self.device)
        self._slot_key = state.meta.slot_key
        mix = map(signed64, mix_of(self._slot_key))
        self._cells.state.copy_(torch.tensor([turn, head, state.meta.failures, *mix]))

    def _meta(self, used: int) -> DeviceFilterMeta:
        turn, _, failures = self._cells.state[:3].tolist()
        mine = (self.capacity_ids, self.split_num, self.seed, self.max_count)
        return DeviceFilterMeta(
            *mine,
            turn % self.split_num,
            turn,
            failures,
            ((8, used, used), (8, used, used)),
            self._slot_key,
        )

    def _salt(self, table: str) -> int:
        return signed64((table_key(table) + self.seed * _SPREAD) % 2**64)

    def _asked(self, ids: Tensor, asked: Tensor | None) -> Tensor:
        return torch.ones_like(ids, dtype=torch.bool) if asked is None else asked


_NEVER = 2**62


@dataclass(frozen=True, slots=True, eq=False)
class GroupedOccurrences:
    """The occurrences of the ids of one call, sorted into groups of equal ids."""

    ids: Int64[Tensor, "n"]
    start: Int64[Tensor, "n"]  # the first position of its group
    number: Int64[Tensor, "n"]  # its position in its group, from 0
    live: Bool[Tensor, "n"]  # False for padding
    occurrences: Int64[Tensor, "n"]  # how many occurrences it stands for

    @staticmethod
    def of(
        grouped: Grouped, used: Int64[Tensor, "1"] | None, counts: Int64[Tensor, "n"] | None
    ) -> GroupedOccurrences:
        """Returns the occurrences of grouped ids, without waiting for the device."""
        ids, order = grouped.ids, grouped.order
        at = torch.arange(len(ids), device=ids.device)
        order = at if order is None else order
        begins = torch.ones_like(ids, dtype=torch.bool)
        begins[1:] = ids[1:] != ids[:-1]
        start = torch.where(begins, at, 0).cummax(0).values if len(ids) else at
        live = order < (len(ids) if used is None else used)
        occurrences = live.long()
        if counts is not None:
            occurrences *= counts[order.clamp(max=max(len(counts) - 1, 0))]
        return GroupedOccurrences(ids, start, at - start, live, occurrences)

    def total(self, of: Int64[Tensor, "n"]) -> Int64[Tensor, "n"]:
        """Returns the sum over each group, at the group's first position; 0 elsewhere."""
        return torch.zeros_like(of).scatter_add_(0, self.start, of)

    def first(self, good: Bool[Tensor, "n"]) -> Int64[Tensor, "n"]:
        """Returns the number of the first `good` occurrence per group, at its first position.

        It is `_NEVER` elsewhere, and for groups without a good occurrence.
        """
        numbers = torch.where(good & self.live, self.number, _NEVER)
        never = torch.full_like(numbers, _NEVER)
        return never.scatter_reduce_(0, self.start, numbers, "amin")


class DeviceAdmission:
    """Decides by the admission rule of one table which ids may have a row.

    It decides once per id of a call, or once per occurrence.
    """

    def __init__(
        self,
        question: AdmissionQuestion,
        *,
        table: str,
        seed: int,
        filter: DeviceFilter | None,
        device: torch.device,
    ) -> None:
        self._question, self._table, self._seed, self._filter = question, table, seed, filter
        if filter is not None:
            check_reachable(table, question, filter.max_count)
        self._parameters = torch.full((1,), float(question.parameter), dtype=torch.float64)
        if question.slots:
            self._parameters = self._parameters.repeat(SLOTS)
            for slot, value in question.slots:
                self._parameters[slot] = float(value)
        self._parameters = self._parameters.to(device)

    def refused(
        self, seen: GroupedOccurrences, absent: Bool[Tensor, "n"], step: int, *, each: bool
    ) -> Bool[Tensor, "n"]:
        """Returns which occurrences are refused.

        With `each`, the rule decides for every occurrence separately, until one is admitted.
        """
        size = seen.total(seen.live.long())  # of each group, at its first position
        asked = absent & (size > 0)
        parameter = self._parameter(seen.ids)
        if self._question.form == "count":
            first = self._by_count(seen, asked & (parameter > 0), parameter, each)
        else:
            first = self._by_chance(seen, parameter, step, each)
        refused = torch.where(asked & (parameter > 0), first.minimum(size), 0)
        return seen.live & (seen.number < refused[seen.start])

    def _parameter(self, ids: Tensor) -> Float64[Tensor, "n"]:
        if len(self._parameters) == 1:
            return self._parameters.expand(len(ids))
        return self._parameters[slot_of(ids)]

    def _by_count(
        self, seen: GroupedOccurrences, asked: Tensor, threshold: Tensor, each: bool
    ) -> Tensor:
        """Returns the number of the first admitted occurrence, at each group's first position."""
        if self._filter is None:
            raise AssertionError("a counting rule has a filter")
        before = self._filter.counts(seen.ids, asked, table=self._table)
        if not each:
            first = torch.where(before >= threshold, 0, _NEVER)
            added = seen.total(seen.occurrences)
        else:
            upto = seen.occurrences.cumsum(0)
            earlier = upto - seen.occurrences
            earlier = earlier - earlier[seen.start]
            counted = (before[seen.start] + earlier).clamp(max=self._filter.max_count)
            first = seen.first(counted >= threshold)
            last = first.minimum(seen.total(seen.live.long()) - 1).clamp(min=0)
            asked_to = (seen.start + last).clamp(max=len(last) - 1)
            added = (earlier + seen.occurrences)[asked_to]
        stored = self._filter.add(seen.ids, asked, table=self._table, counts=added)
        passes = asked & ~stored & (self._filter.max_count >= threshold)
        first = torch.where(asked & ~stored, _NEVER, first)
        return torch.where(passes, 0, first)  # an id that found no cell counts as seen often enough

    def _by_chance(
        self, seen: GroupedOccurrences, parameter: Tensor, step: int, each: bool
    ) -> Tensor:
        asked = seen.occurrences if each else seen.total(seen.occurrences)
        chance = _probability(self._question.form, parameter, asked)
        good = draws(seen.ids, seen.number, self._seed, step).double() < chance
        return seen.first(good) if each else torch.where(good, 0, _NEVER)


def filter_of(
    config: TableConfig, given: DeviceFilter | None, slot_key: int, device: torch.device
) -> DeviceFilter | None:
    """Returns the filter of a table: `given`, or a new one if the admission rule counts ids."""
    if given is not None and not isinstance(given, DeviceFilter):
        raise DtypeError(
            f"filter is {given!r}; pass a DeviceFilter, for example another table's filter."
        )
    question = None if config.admit is None else config.admit.question()
    if given is not None or question is None or question.form != "count":
        return given
    assert config.admit is not None
    settings = config.admit.filter_settings()
    return DeviceFilter(seed=config.row_seed, device=device, slot_key=slot_key, **settings)


def admission_of(
    config: TableConfig, filter: DeviceFilter | None, device: torch.device
) -> DeviceAdmission | None:
    """Returns the admission decisions of a table; None if it admits every id."""
    question = None if config.admit is None else config.admit.question()
    if question is None:
        return None
    return DeviceAdmission(
        question, table=config.name, seed=config.row_seed, filter=filter, device=device
    )


def _probability(form: str, parameter: Tensor, occurrences: Tensor) -> Float64[Tensor, "n"]:
    """Returns the same as the core's `admission_probability`."""
    n = occurrences.double()
    if form == "each":
        return 1 - (1 - parameter) ** n
    share = n / torch.where(parameter > 0, parameter, 1.0)
    chance = share.clamp(max=1.0) if form == "unequal" else 1 - 0.05**share
    return torch.where(parameter > 0, chance, 1.0)


_CALLS = 2**15 - 1  # call numbers that scores can tell apart


class DeviceFullPolicy:
    """What a full table does besides refusing new ids: it evicts rows or raises an error."""

    def __init__(
        self, name: str, slots: DeviceSlots, feed: DeviceFeed, stamps: WriteStamps
    ) -> None:
        self._name, self._slots, self._feed, self._stamps = name, slots, feed, stamps
        self._calls = 0

    def raise_if_full(self, without: Int64[Tensor, ""]) -> None:
        """Raises an error if the number of ids `without` a slot is not 0; waits for the device."""
        if count := int(without):
            raise TableFullError(
                f"{count} ids of a call found no room in table {self._name!r}: "
                f"{self._slots.size()} of its {self._slots.capacity_rows} slots are taken, and "
                f"above about 85 % some ids find only full buckets. All other rows were written. "
                f"Give the table more capacity_rows, or make it with full='grow' or 'evict'."
            )

    def give_way(
        self, grouped: Grouped, wanted: Bool[Tensor, "n"], now: int, done: Int64[Tensor, "3"]
    ) -> None:
        """Inserts rows for the `wanted` ids, one of each group; never waits for the device.

        If an id finds no slot, the row with the smallest score in its buckets is evicted. The score
        is the time of the row, or under `Lfu` how often it was used. Existing rows of wanted ids
        get a new score, so that they stay. New rows get their initial values.
        """
        if not len(grouped.ids):
            return
        slots = self._slots
        slots.moved()
        self._calls = self._calls % _CALLS + 1
        wanted_first = wanted.logical_not().argsort(stable=True)
        ids, asked = grouped.ids[wanted_first], wanted.sum().view(1)
        order = self._stamps.order
        by_use = order is not None and order.by_use
        # The use is counted when the row is written, not here.
        scores = torch.full_like(ids, 0 if by_use else now if order is None else now & MARK)
        out = insert_and_evict(
            *(slots.arrays, ids, scores),
            call=self._calls,
            now=now,
            mode="use" if by_use else "assign",
            top=0 if order is None else order.top,
            used=asked,
        )
        left = out.codes == EVICTED
        new = left | (out.codes == INSERTED) | (out.codes == RECLAIMED)
        rows, states = slots.first_rows(ids)
        uncounted = torch.zeros_like(done)  # `assign` would count ids that are not new as dropped
        assign(
            *(slots.arrays, group(ids), rows, new, slots.starts, uncounted, now),
            states=states,
        )
        done[0] += new.sum()
        slots.totals[4] += left.sum()
        self._feed.mark(out.victims, left)


class DeviceEvictions:
    """Removes rows by the table's eviction rule. Every call waits for the device."""

    def __init__(
        self,
        config: TableConfig,
        slots: DeviceSlots,
        times: RowTimes,
        feed: DeviceFeed,
        stamps: WriteStamps,
        events: Counters,
    ) -> None:
        self._config, self._slots, self._times, self._feed = config, slots, times, feed
        self._stamps, self._events = stamps, events

    def evict(
        self, *, now_s: int | None = None, capture: bool = False, rows: int | None = None
    ) -> Evicted:
        """Removes the rows that the rule selects; see `DeviceTable.evict`."""
        rule = self._config.evict
        checks.flag("capture", capture)
        given = None if now_s is None else checks.count("now_s", now_s)
        if isinstance(rule, Ttl):
            ids, ts = self._older(rule, given)
        elif isinstance(rule, Lru | Lfu):
            ids, ts = self._beyond(rule.rows if rows is None else checks.count("rows", rows))
        else:
            raise ConfigError(
                f"table {self._config.name!r} has no eviction rule; make its TableConfig with "
                f"evict=Ttl(...), Lru(...) or Lfu(...)."
            )
        if len(ids):
            with self._slots.on_device():
                self._feed.before_change()
                self._feed.mark(ids, self._slots.erase(Grouped(ids, None)))
        self._events.add("evicted", len(ids))
        return Evicted(len(ids), ids, ts) if capture else Evicted(len(ids))

    def _older(self, rule: Ttl, now_s: int | None) -> tuple[Tensor, Tensor]:
        """Returns ids and times of the expired rows. Under a `Ttl` rule, stamps are times."""
        times = self._times
        if now_s is None:
            now_s = times.newest if rule.reference == "newest" else self._stamps.clock.now_s()
        if times.oldest is None or now_s - times.oldest < rule.shortest_s():
            return self._no_rows()
        slots, ids = self._all_rows()
        ts = self._slots.arrays.read(TIMES, slots)
        leaving = expired(ids, ts, now_s, rule)
        # Rows of slots whose ids may stay longer count as younger by the difference.
        later = rule.ages_s().to(ids.device)[slot_of(ids)] - rule.shortest_s()
        staying = (ts + later)[~leaving]
        oldest = [int(staying.min())] if len(staying) else []
        captured = [] if times.captured is None else [times.captured]
        times.oldest = min([*oldest, *captured], default=None)
        return ids[leaving], ts[leaving]

    def _beyond(self, most: int) -> tuple[Tensor, Tensor]:
        """Returns ids and times of the rows to remove so that at most `most` rows stay."""
        if self._slots.size() <= most:
            return self._no_rows()
        order = self._stamps.order
        assert order is not None  # tables with Lru or Lfu have an order
        slots, ids = self._all_rows()
        stamps, by_id = self._slots.stamps_at(self._slots.arrays, slots), ids.argsort()
        first_to_leave = by_id[order.ranks(stamps[by_id]).argsort(stable=True)]
        leaving = first_to_leave[: max(0, len(ids) - most)]
        return ids[leaving], order.seconds(stamps[leaving])

    def _all_rows(self) -> tuple[Int64[Tensor, "n"], Int64[Tensor, "n"]]:
        """Returns the slots and ids of all rows."""
        slots = self._slots.taken()
        return slots, self._slots.arrays.ids(slots)

    def _no_rows(self) -> tuple[Tensor, Tensor]:
        nothing = torch.empty(0, dtype=torch.int64, device=self._slots.device)
        return nothing, nothing
