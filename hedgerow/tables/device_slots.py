"""The slots of a device table: where rows lie, which changed, and snapshots of all rows."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Literal
from weakref import ref

import torch
from torch import Tensor

from ..core import checks
from ..core.errors import ConfigError, InputError, NameTakenError, StateError
from ..core.shapes import Bool, Float32, Int64
from ..kernels import assign, find, lookup
from ..kernels.evict import touch
from ..kernels.find import find_or_insert
from ..kernels.first_values import first_values
from ..kernels.layout import (
    LANES,
    MARK,
    SCORES,
    TIMES,
    Arrays,
    FirstValues,
    Grouped,
    RowSegment,
    drifts,
)
from ..kernels.rules import RULES
from ..kernels.slots import rehash
from .changes import DEFAULT_CAPACITY, Overflow, TouchedBatch, TouchedSettings
from .compressors import Bf16, Fp16, Fp32
from .config import Segment, TableConfig
from .eviction import WriteStamps
from .layout import RowLayout, slice_rows
from .optimizers import Rule
from .slot_key import slot_key_of
from .store import Entries, TableKeys
from .transfer import MovingRows

Full = Literal["refuse", "raise", "evict", "grow"]
"""What a full table does with ids that find no room.

"refuse" counts them, "raise" also raises an error, "evict" lets the row with the smallest score in
reach leave, and "grow" gives the table more slots."""

FILL = 0.8  # of the slots: up to there every id finds room
MAX_IDS = 2**31 - 1  # of one call, and slots of a table: kernels count in 32 bits
_ROOMY = 0.6  # after growth at most so much is taken, so that the next count is far away
_MAX_DIM = 1024  # a row is held in the registers of one program
_STAY = nullcontext()


class DeviceSlots:
    """The slots of one table and the rows in them.

    `arrays` holds keys, times, rows and states, `slot_key` decides where ids are placed. `epoch` is
    replaced whenever a row may have moved or left: slots that were found under another epoch are
    out of date. `totals` counts the rows that were inserted, refused, dropped, erased, and evicted
    for other ids. Not thread-safe.
    """

    def __init__(
        self,
        config: TableConfig,
        device: torch.device,
        stamps: WriteStamps,
        *,
        capacity_rows: int,
        full: Full,
    ) -> None:
        self.device = device
        self.full: Full = full
        self.layout = RowLayout(config)
        self.parts = tuple(_parts(config, self.layout, device))
        self.starts: Float32[Tensor, "states"] = torch.tensor(
            self.layout.starts(), dtype=torch.float32, device=device
        )
        order = stamps.order
        # Rows get a score beside their time where stamps with marks leave no room for one.
        self.scored = order is not None and (order.by_use or full == "evict")
        self.slot_key = slot_key_of(config.slot_key)
        self.epoch = object()
        self.totals: Int64[Tensor, "5"] = torch.zeros(5, dtype=torch.int64, device=device)
        self._name, self._stamps, self._marked = config.name, stamps, order is not None
        self._on_gpu = device.type == "cuda"
        self._known = self._since = 0  # rows when they were last counted, ids written since then
        self.arrays = self._empty(-(-capacity_rows // LANES))

    @property
    def capacity_rows(self) -> int:
        """Number of slots."""
        return self.arrays.buckets * LANES

    # ---- the device

    def on_device(self) -> AbstractContextManager[object]:
        """Makes the table's device the current one, on which kernels start."""
        if not self._on_gpu or self.device.index == torch.cuda.current_device():
            return _STAY
        return torch.cuda.device(self.device)

    def is_capturing(self) -> bool:
        """Whether a CUDA graph is being captured, in which nothing may be allocated anew."""
        return self._on_gpu and torch.cuda.is_current_stream_capturing()

    # ---- reading

    def find(self, keys: TableKeys) -> Int64[Tensor, "n"]:
        """The slot of each key; -1 = absent."""
        with self.on_device():
            return find.find(self.arrays, keys.ids, keys.used)

    def taken(self) -> Int64[Tensor, "rows"]:
        """All slots that have a row; waits for the device."""
        return self.arrays.taken().nonzero()[:, 0]

    def slices(self, rows: int | None) -> tuple[Int64[Tensor, "slice"], ...]:
        """All slots that have a row, `rows` at a time, or as many as a scan gives at a time."""
        taken = self.taken()
        return taken.split(slice_rows(self.layout, rows)) if len(taken) else ()

    def entries(self, arrays: Arrays, ids: Tensor, slots: Tensor) -> Entries:
        """Whole rows from slots of these arrays; slots below 0 give absent rows."""
        rows = self.moving_rows(arrays, ids, slots)
        states, times = self.layout.named(rows.states), self._stamps.times_of(rows.ts)
        return Entries(ids, rows.found, rows.rows, states, *times)

    def moving_rows(self, arrays: Arrays, ids: Tensor, slots: Tensor) -> MovingRows:
        """Whole rows with raw states and stamps from slots; slots below 0 give absent rows."""
        with self.on_device():
            rows = lookup.gather(arrays, slots)
        found, at, dim = slots >= 0, slots.clamp(min=0), self.layout.dim
        states = arrays.values[at, dim : dim + self.layout.state_floats]
        states = torch.where(found[:, None], states, 0.0)
        stamps = torch.where(found, self.stamps_at(arrays, at), 0)
        return MovingRows(ids, found, rows, states, stamps)

    def stamps_at(self, arrays: Arrays, slots: Int64[Tensor, "n"]) -> Int64[Tensor, "n"]:
        """The stamps of rows. Under `Lfu` the mark is the weight of all uses of the row."""
        stamps, order = arrays.read(TIMES, slots), self._stamps.order
        if order is None or not order.by_use:
            return stamps
        return (stamps & ~MARK) | (arrays.read(SCORES, slots) & MARK)

    def first_rows(
        self, ids: Int64[Tensor, "n"]
    ) -> tuple[Float32[Tensor, "n dim"], Float32[Tensor, "n states"]]:
        """The rows and the states that new rows of these ids start from."""
        rows = [first_values(ids, part.dim, part.first, part.start) for part in self.parts]
        return torch.cat(rows, dim=1), self.starts.expand(len(ids), -1).contiguous()

    def erase(self, grouped: Grouped, used: Int64[Tensor, "1"] | None = None) -> Bool[Tensor, "n"]:
        """Removes rows; which of the ids had one, in the order in which the ids came."""
        self.epoch = object()  # a slot that a lookup found may be another id's by the next update
        return assign.erase(self.arrays, grouped, used)

    def score(self, slots: Int64[Tensor, "n"]) -> None:
        """Gives rows that were written the score of their stamp; slots below 0 are skipped.

        A row without a score could never leave.
        """
        marks = self.arrays.read(TIMES, slots.clamp(min=0)) & MARK
        touch(self.arrays, slots, marks, "assign")

    # ---- the number of rows

    def size(self) -> int:
        """Number of rows; waits for the device."""
        self._known, self._since = int(self.arrays.taken().sum()), 0
        return self._known

    def size_at_most(self) -> int:
        """An upper bound of the number of rows, without waiting for the device.

        It takes every id that was written since the last `size()` for a new one. Replays of CUDA
        graphs are not counted.
        """
        return self._known + self._since

    # ---- room

    def reserve(self, rows: int) -> None:
        """Makes room for `rows` rows; rows that are there move, if the table is too small."""
        needed = _buckets(rows / FILL)
        if needed > self.arrays.buckets:
            # Rows may stand closer than FILL, and would not all find room in few more slots.
            self._move_to(max(needed, _buckets(self.size() / FILL)))

    def make_room(self, n: int) -> None:
        """Makes room for a call that may insert `n` ids, if the table grows by itself.

        Rows are counted, which waits for the device, only when the ids written since the last
        count could fill the table. After a count the table either grows or was far from full.
        """
        self._since += n
        if self.full != "grow" or self.is_capturing():
            return
        if self.size_at_most() <= FILL * self.capacity_rows:
            return
        self.size()
        self._since = n
        if self._known + n > _ROOMY * self.capacity_rows:
            wanted = max(2 * self.arrays.buckets, _buckets((self._known + n) / _ROOMY))
            self._move_to(wanted)

    def _empty(self, buckets: int) -> Arrays:
        if buckets * LANES >= MAX_IDS:
            raise ConfigError(
                f"table {self._name!r} of {buckets * LANES} slots; at most {MAX_IDS - LANES}."
            )
        return Arrays.make(
            *(buckets, self.layout.dim, self.device, self.layout.state_floats),
            scored=self.scored,
            marked=self._marked,
            slot_key=self.slot_key,
        )

    def _move_to(self, buckets: int) -> None:
        """Moves all rows to arrays of `buckets` buckets, or of more if a row finds no room."""
        rows = int(self.arrays.taken().sum())
        larger = self._empty(buckets)
        with self.on_device():
            moved = rehash(self.arrays, larger)
        if int((moved >= 0).sum()) < rows:
            del larger, moved
            self._move_to(2 * buckets)
            return
        self.arrays, self.epoch = larger, object()

    # ---- other arrays

    def moved(self) -> None:
        """Marks slots that were found before as out of date: rows have moved or left."""
        self.epoch = object()

    def clear(self) -> None:
        """Removes all rows."""
        self.arrays.clear()
        self.epoch = object()

    def place_by(self, slot_key: int) -> None:
        """Places ids by this slot key from now on; the table has no rows."""
        self.slot_key = slot_key
        self.clear()  # the places of erased ids, too
        self.arrays.place_by(slot_key)

    def use_arrays(self, arrays: Arrays, slot_key: int) -> None:
        """Keeps rows in these empty arrays from now on, placed by this slot key."""
        arrays.place_by(slot_key)
        self.arrays, self.slot_key = arrays, slot_key

    def exchange(self, other: DeviceSlots) -> None:
        """Swaps all rows, with their slots and slot key, with another table's."""
        self.arrays, other.arrays = other.arrays, self.arrays
        self.slot_key, other.slot_key = other.slot_key, self.slot_key
        for slots in (self, other):
            slots.moved()
            slots._known = slots.capacity_rows  # rows are counted anew before the next growth


class RowTimes:
    """Bounds of the stamps of a table's rows, known without looking at the rows.

    `newest` is the largest stamp that a write gave. No row has a smaller stamp than `oldest`; it is
    None if there are no rows. `captured` is the smallest stamp of a write that a CUDA graph
    repeats; None if there is none. `is_timed` says whether any row may have another stamp than 0.
    """

    def __init__(self) -> None:
        self.newest = 0
        self.oldest: int | None = None
        self.captured: int | None = None
        self.is_timed = False

    def wrote(self, stamp: int, n: int, *, captured: bool) -> None:
        """Rows of `n` ids are written with this stamp."""
        self.newest = max(self.newest, stamp)
        self.is_timed |= stamp > 0
        if n:
            self.oldest = stamp if self.oldest is None else min(self.oldest, stamp)
            if captured:
                self.captured = stamp if self.captured is None else min(self.captured, stamp)

    def exchange(self, other: RowTimes) -> None:
        """Swaps all rows with another table."""
        self.newest, other.newest = other.newest, self.newest
        self.is_timed, other.is_timed = other.is_timed, self.is_timed
        self.oldest = other.oldest = 0


def check_config(config: TableConfig) -> None:
    """Raises an error that names what a table on a device cannot do; see docs/internals.md."""
    wrong = [reason for reason, holds in _reasons(config) if holds]
    if wrong:
        raise ConfigError(
            f"table {config.name!r} cannot live on a device: {', '.join(wrong)}. Use HostTable."
        )


def _reasons(config: TableConfig) -> Iterator[tuple[str, bool]]:
    yield f"its dim is {config.dim}, above {_MAX_DIM}", config.dim > _MAX_DIM
    for i, segment in enumerate(config.segments):
        rule = _rule_of(segment).name
        plain = Fp32 if config.serving else Fp32 | Fp16 | Bf16  # in training these change nothing
        compressed = not isinstance(segment.compressor, plain | None)
        yield f"segments[{i}] learns by {segment.optimizer!r}", rule not in RULES
        rounds = segment.stochastic_rounding_float16
        yield f"segments[{i}] rounds to half precision", rounds
        yield f"the compressor of segments[{i}] is {segment.compressor!r}", compressed


def _rule_of(segment: Segment) -> Rule:
    return segment.optimizer.rule() if segment.optimizer else Rule("sgd", (0.0,))


def _parts(config: TableConfig, layout: RowLayout, device: torch.device) -> Iterator[RowSegment]:
    """The segments as kernels know them; those of a serving table neither learn nor draw."""
    start, state = 0, config.dim
    for i, segment in enumerate(config.segments):
        first = FirstValues("constant", 0.0, 0.0, config.row_seed)
        if segment.init is not None:
            first = FirstValues(
                segment.init.native_kind, *segment.init.parameters(), config.row_seed
            )
        rule = _rule_of(segment)
        table = drifts(rule.settings[0], rule.settings[2]) if rule.name == "dense_adam" else ()
        numbers = RowSegment.numbers_of(
            rule.settings, [s.initial for s in rule.states], device, table
        )
        yield RowSegment(start, segment.dim, state, first, rule.name, numbers)
        start += segment.dim
        state += sum(p.stop - p.start for p in layout.places if p.segment == i)


def _buckets(slots: float) -> int:
    return -(-int(slots + 1) // LANES)


_ROOM = 1.25  # slots per key: no key is refused before the capacity is reached


class DeviceFeed:
    """The consumers of a table's touched keys, and its open snapshots. Not thread-safe.

    Whoever changes rows calls `before_change` first and `mark` afterwards.
    """

    def __init__(self, name: str, slots: DeviceSlots) -> None:
        self._name, self._slots = name, slots
        self._consumers: dict[str, DeviceTouched] = {}
        self._snapshots: list[ref[DeviceSnapshot]] = []  # made since rows were changed last

    # ---- those who follow

    def touched(
        self,
        consumer: str,
        *,
        capacity: int = DEFAULT_CAPACITY,
        all_changes: bool = False,
        overflow: Overflow = "whole_table",
    ) -> DeviceTouched:
        """The consumer of that name, opened if it is not; see `DeviceTable.touched`."""
        if not isinstance(consumer, str) or not consumer:
            raise InputError(f"consumer is {consumer!r}; it must be a non-empty str.")
        settings = TouchedSettings(capacity, all_changes, overflow)
        known = self._consumers.get(consumer)
        if known is None:
            known = DeviceTouched(consumer, settings, self._slots.device, self._consumers.pop)
            self._consumers[consumer] = known
        if known.settings != settings:
            raise NameTakenError(
                f"consumer {consumer!r} of table {self._name!r} is open with "
                f"{known.settings}, not {settings}; close it first, or choose another name."
            )
        return known

    def consumer(self, name: str) -> DeviceTouched | None:
        """The consumer of touched keys that is open under a name, if one is."""
        return self._consumers.get(name)

    def snapshot(self, max_ts: int) -> DeviceSnapshot:
        """All rows as they are when this returns, the newest of them written at `max_ts`."""
        arrays, slices = self._slots.arrays, self._slots.slices(None)
        parts = (self._slots.entries(arrays, arrays.ids(slots), slots) for slots in slices)
        size = sum(map(len, slices))
        opened = DeviceSnapshot(self._name, parts, size, max_ts)
        self._snapshots.append(ref(opened))
        return opened

    def nbytes(self) -> int:
        """Bytes of device memory that the consumers of touched keys take."""
        return sum(consumer.nbytes for consumer in self._consumers.values())

    # ---- what writes tell

    def before_change(self) -> None:
        """Lets open snapshots copy the rows that they have not read yet: they are about to change.

        Every snapshot copies once, since it then has all rows.
        """
        while self._snapshots:
            opened = self._snapshots.pop()()
            if opened is not None:
                opened.keep()

    def is_watched(self, *, learned: bool) -> bool:
        """Whether a consumer collects the keys of such a write: `learned`, or of another kind."""
        return bool(self._consumers and self._wanting(learned=learned))

    def mark(
        self, ids: Int64[Tensor, "n"], touched: Bool[Tensor, "n"], *, learned: bool = False
    ) -> None:
        """Tells consumers that the rows of the `touched` ids were written."""
        for consumer in self._wanting(learned=learned) if len(ids) else ():
            consumer.mark(ids, touched)

    def mark_all(self) -> None:
        """Tells consumers of all changes that any row may have changed."""
        for consumer in self._wanting(learned=False):
            consumer.mark_all()

    def _wanting(self, *, learned: bool) -> list[DeviceTouched]:
        return [c for c in self._consumers.values() if learned or c.settings.all_changes]


class DeviceTouched:
    """One consumer's touched keys of one table, from `DeviceTable.touched`.

    It works as `TouchedKeys`, with ids on the table's device. It takes about 20 bytes per key of
    its capacity when it is opened. With `overflow="forget"` the capacity is checked once per call.
    Not thread-safe, like the table.
    """

    def __init__(
        self,
        name: str,
        settings: TouchedSettings,
        device: torch.device,
        forget_name: Callable[[str], object],
    ) -> None:
        self.name = name
        self.settings = settings
        self.since: str | None = None  # the consumer's own mark of what it delivered last
        self.delivering = threading.Lock()  # held from taking keys until they are delivered
        self._forget_name = forget_name
        self._closed = False
        buckets = int(settings.capacity * _ROOM) // LANES + 2
        self._keys = Arrays.make(buckets, 0, device, slot_key=slot_key_of(None))
        self._size, self._whole, self._forgotten, self._overflows = torch.zeros(
            4, dtype=torch.int64, device=device
        )

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self.size()} keys"
        return f"DeviceTouched({self.name!r}, {state})"

    @property
    def nbytes(self) -> int:
        """Bytes of device memory that it takes."""
        return sum(self._keys.nbytes)

    def mark(self, ids: Int64[Tensor, "n"], touched: Bool[Tensor, "n"]) -> None:
        """Adds the `touched` ids, without waiting for the device."""
        if self.settings.overflow == "forget":
            self._forget_if_full(touched)
        slots, new = find_or_insert(self._keys, ids, wanted=touched)
        lost = (touched & (slots < 0)).sum()
        self._size += new.sum()
        if self.settings.overflow == "forget":
            self._forgotten += lost
            return
        full = (self._size > self.settings.capacity) | (lost > 0)
        self._overflows += full & (self._whole == 0)
        self._whole |= full

    def mark_all(self) -> None:
        """Marks the whole table: any key may have changed."""
        self._whole.fill_(1)

    def take(self) -> TouchedBatch:
        """The keys touched since the last take; waits for the device. Collecting starts again."""
        self._check_open()
        whole, forgotten = bool(self._whole), int(self._forgotten)
        ids = self._keys.ids(self._keys.taken().nonzero()[:, 0])
        self._empty()
        return TouchedBatch(ids[:0] if whole else ids, whole, forgotten)

    def give_back(self, taken: TouchedBatch | Int64[Tensor, "n"]) -> None:
        """Puts keys that were taken but could not be delivered back, for the next take."""
        self._check_open()
        ids = taken.ids if isinstance(taken, TouchedBatch) else taken
        checks.tensor("ids", ids, torch.int64, (None,), self._size.device)
        if isinstance(taken, TouchedBatch) and taken.whole_table:
            if self.settings.overflow == "forget":
                raise InputError(
                    "a whole table given back to a consumer with overflow='forget', which never "
                    "says so; give its ids back."
                )
            self.mark_all()
        self.mark(ids, torch.ones_like(ids, dtype=torch.bool))

    def size(self) -> int:
        """Number of keys that wait to be taken; 0 if the whole table does."""
        self._check_open()
        return 0 if bool(self._whole) else int(self._size)

    def overflows(self) -> int:
        """How often more keys were touched than the capacity, since the consumer was opened."""
        self._check_open()
        return int(self._overflows)

    def close(self) -> None:
        """Stops collecting and frees the name; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self._forget_name(self.name)

    def _forget_if_full(self, touched: Tensor) -> None:
        full = (self._size > self.settings.capacity) & touched.any()
        self._forgotten += self._size * full
        self._overflows += full
        self._size *= ~full
        self._keys.clear(full)

    def _empty(self) -> None:
        for number in (self._size, self._whole, self._forgotten):
            number.zero_()
        self._keys.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise StateError(
                f"the consumer {self.name!r} of touched keys is closed; open it again with "
                f"table.touched({self.name!r}): it then knows of changes from there on."
            )


class DeviceSnapshot:
    """All rows of a table at one instant (`DeviceTable.snapshot`), in slices in host memory.

    A scan copies each slice off the device when it is read. The first write after the snapshot
    copies the slices that were not read yet to host memory before it changes a row. So a save
    without training beside it holds one slice at a time. Several scans, also of several threads,
    share the rows: each row is given once.
    """

    def __init__(self, name: str, slices: Iterator[Entries], size: int, max_ts: int) -> None:
        self._name, self.size, self.max_ts = name, size, max_ts
        self._slices = slices
        self._aside: deque[Entries] = deque()
        self._reading = threading.Lock()
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"DeviceSnapshot({self._name!r}, {self.size} rows, {state})"

    def __enter__(self) -> DeviceSnapshot:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def resume(self) -> None:
        """Does nothing: no writer waits for a snapshot of a table on a device."""

    def scan(self, rows: int | None = None) -> Iterator[Entries]:
        """The rows, in the slices of the table's own scan."""
        del rows
        while (part := self._next()) is not None:
            yield part

    def _next(self) -> Entries | None:
        with self._reading:
            if self._closed:
                raise StateError(
                    f"the snapshot of table {self._name!r} is closed; open another with snapshot()."
                )
            if self._aside:
                return self._aside.popleft()
            part = next(self._slices, None)
            return None if part is None else part.to("cpu")

    def keep(self) -> None:
        """Copies the slices that were not read yet to host memory: the table is about to change."""
        with self._reading:
            self._aside.extend(part.to("cpu") for part in self._slices)

    def close(self) -> None:
        """Frees the copied rows; a second call does nothing."""
        with self._reading:
            self._closed = True
            self._slices = iter(())
            self._aside.clear()
