"""The slots of a device table: where rows are stored, its change feeds, and its snapshots."""

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
"""What a full table does with ids that find no slot.

"refuse" counts them. "raise" also raises an error. "evict" evicts the row with the smallest score
in the candidate buckets. "grow" gives the table more slots.
"""

FILL = 0.8  # of the slots; up to this share, every id finds a slot
MAX_IDS = 2**31 - 1  # ids per call, and slots per table: kernels count in 32 bits
_ROOMY = 0.6  # share of taken slots after growth, so that the next count is far away
_MAX_DIM = 1024  # a kernel program holds one row in registers
_STAY = nullcontext()


class DeviceSlots:
    """The slots of one table and the rows in them. Not thread-safe.

    `arrays` holds keys, times, rows and states. `slot_key` determines the slots of ids. `epoch` is
    replaced when a row may have moved or left; slots found under another epoch are stale. `totals`
    counts rows: inserted, refused, dropped, erased, and evicted for other ids.
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
        # If the marks in the stamps cannot serve as scores, rows get a separate score.
        self.scored = order is not None and (order.by_use or full == "evict")
        self.slot_key = slot_key_of(config.slot_key)
        self.epoch = object()
        self.totals: Int64[Tensor, "5"] = torch.zeros(5, dtype=torch.int64, device=device)
        self._name, self._stamps, self._marked = config.name, stamps, order is not None
        self._on_gpu = device.type == "cuda"
        self._known = self._since = 0  # rows at the last count, and ids written since
        self.arrays = self._empty(-(-capacity_rows // LANES))

    @property
    def capacity_rows(self) -> int:
        """The number of slots."""
        return self.arrays.buckets * LANES

    # ---- the device

    def on_device(self) -> AbstractContextManager[object]:
        """Returns a context that makes the table's device the current one, for kernel launches."""
        if not self._on_gpu or self.device.index == torch.cuda.current_device():
            return _STAY
        return torch.cuda.device(self.device)

    def is_capturing(self) -> bool:
        """Returns whether a CUDA graph is being captured; memory must not be allocated then."""
        return self._on_gpu and torch.cuda.is_current_stream_capturing()

    # ---- reading

    def find(self, keys: TableKeys) -> Int64[Tensor, "n"]:
        """Returns the slot of each key; -1 = absent."""
        with self.on_device():
            return find.find(self.arrays, keys.ids, keys.used)

    def taken(self) -> Int64[Tensor, "rows"]:
        """Returns all slots that have a row; waits for the device."""
        return self.arrays.taken().nonzero()[:, 0]

    def slices(self, rows: int | None) -> tuple[Int64[Tensor, "slice"], ...]:
        """Returns all slots that have a row, in parts of `rows` slots.

        None takes the size of a scan slice.
        """
        taken = self.taken()
        return taken.split(slice_rows(self.layout, rows)) if len(taken) else ()

    def entries(self, arrays: Arrays, ids: Tensor, slots: Tensor) -> Entries:
        """Returns whole rows from slots of these arrays; negative slots give absent rows."""
        rows = self.moving_rows(arrays, ids, slots)
        states, times = self.layout.named(rows.states), self._stamps.times_of(rows.ts)
        return Entries(ids, rows.found, rows.rows, states, *times)

    def moving_rows(self, arrays: Arrays, ids: Tensor, slots: Tensor) -> MovingRows:
        """Returns whole rows with raw states and stamps. Negative slots give absent rows."""
        with self.on_device():
            rows = lookup.gather(arrays, slots)
        found, at, dim = slots >= 0, slots.clamp(min=0), self.layout.dim
        states = arrays.values[at, dim : dim + self.layout.state_floats]
        states = torch.where(found[:, None], states, 0.0)
        stamps = torch.where(found, self.stamps_at(arrays, at), 0)
        return MovingRows(ids, found, rows, states, stamps)

    def stamps_at(self, arrays: Arrays, slots: Int64[Tensor, "n"]) -> Int64[Tensor, "n"]:
        """Returns the stamps of rows.

        Under `Lfu`, the mark is the weight of all uses of the row.
        """
        stamps, order = arrays.read(TIMES, slots), self._stamps.order
        if order is None or not order.by_use:
            return stamps
        return (stamps & ~MARK) | (arrays.read(SCORES, slots) & MARK)

    def first_rows(
        self, ids: Int64[Tensor, "n"]
    ) -> tuple[Float32[Tensor, "n dim"], Float32[Tensor, "n states"]]:
        """Returns the initial rows and states of these ids."""
        rows = [first_values(ids, part.dim, part.first, part.start) for part in self.parts]
        return torch.cat(rows, dim=1), self.starts.expand(len(ids), -1).contiguous()

    def erase(self, grouped: Grouped, used: Int64[Tensor, "1"] | None = None) -> Bool[Tensor, "n"]:
        """Removes rows; returns which ids had a row, in the order of the caller's ids."""
        self.epoch = object()  # new ids may reuse these slots before the next update
        return assign.erase(self.arrays, grouped, used)

    def score(self, slots: Int64[Tensor, "n"]) -> None:
        """Sets the scores of written rows from their stamps; negative slots are skipped.

        A row without a score could never be evicted.
        """
        marks = self.arrays.read(TIMES, slots.clamp(min=0)) & MARK
        touch(self.arrays, slots, marks, "assign")

    # ---- the number of rows

    def size(self) -> int:
        """Returns the number of rows; waits for the device."""
        self._known, self._since = int(self.arrays.taken().sum()), 0
        return self._known

    def size_at_most(self) -> int:
        """Returns an upper bound of the number of rows, without waiting for the device.

        It counts every id written since the last `size()` as a new row. It does not count replays
        of CUDA graphs.
        """
        return self._known + self._since

    # ---- capacity

    def reserve(self, rows: int) -> None:
        """Makes the table large enough for `rows` rows; if it is too small, its rows move."""
        needed = _buckets(rows / FILL)
        if needed > self.arrays.buckets:
            # The table may be fuller than FILL; its rows would then not all fit in slightly more
            # slots.
            self._move_to(max(needed, _buckets(self.size() / FILL)))

    def make_room(self, n: int) -> None:
        """Grows the table, if full="grow", before a call that may insert `n` ids.

        It counts the rows, which waits for the device, only when the ids written since the last
        count could fill the table. After a count, either the table grows or it is far from full.
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
        """Moves all rows to arrays of `buckets` buckets, or of more if a row finds no slot."""
        rows = int(self.arrays.taken().sum())
        larger = self._empty(buckets)
        with self.on_device():
            moved = rehash(self.arrays, larger)
        if int((moved >= 0).sum()) < rows:
            del larger, moved
            self._move_to(2 * buckets)
            return
        self.arrays, self.epoch = larger, object()

    # ---- changes of the arrays

    def moved(self) -> None:
        """Marks slots found so far as stale, because rows have moved or left."""
        self.epoch = object()

    def clear(self) -> None:
        """Removes all rows."""
        self.arrays.clear()
        self.epoch = object()

    def place_by(self, slot_key: int) -> None:
        """Places ids by this slot key from now on. The table must have no rows."""
        self.slot_key = slot_key
        self.clear()  # also clears the slots of erased ids
        self.arrays.place_by(slot_key)

    def use_arrays(self, arrays: Arrays, slot_key: int) -> None:
        """Keeps rows in these empty arrays from now on, placed by this slot key."""
        arrays.place_by(slot_key)
        self.arrays, self.slot_key = arrays, slot_key

    def exchange(self, other: DeviceSlots) -> None:
        """Swaps all rows, slots and slot keys with another table."""
        self.arrays, other.arrays = other.arrays, self.arrays
        self.slot_key, other.slot_key = other.slot_key, self.slot_key
        for slots in (self, other):
            slots.moved()
            slots._known = slots.capacity_rows  # forces a count before the next growth


class RowTimes:
    """Bounds of the stamps of a table's rows, kept without reading the rows.

    `newest` is the largest stamp of all writes. No row has a smaller stamp than `oldest`, which is
    None if there are no rows. `captured` is the smallest stamp of a write that a captured CUDA
    graph repeats, or None. `is_timed` says whether any row may have a stamp other than 0.
    """

    def __init__(self) -> None:
        self.newest = 0
        self.oldest: int | None = None
        self.captured: int | None = None
        self.is_timed = False

    def wrote(self, stamp: int, n: int, *, captured: bool) -> None:
        """Records that rows of `n` ids are written with this stamp."""
        self.newest = max(self.newest, stamp)
        self.is_timed |= stamp > 0
        if n:
            self.oldest = stamp if self.oldest is None else min(self.oldest, stamp)
            if captured:
                self.captured = stamp if self.captured is None else min(self.captured, stamp)

    def exchange(self, other: RowTimes) -> None:
        """Swaps the bounds with another table, whose rows are swapped too."""
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
        plain = Fp32 if config.serving else Fp32 | Fp16 | Bf16  # in training they change no row
        compressed = not isinstance(segment.compressor, plain | None)
        yield f"segments[{i}] learns by {segment.optimizer!r}", rule not in RULES
        rounds = segment.stochastic_rounding_float16
        yield f"segments[{i}] rounds to half precision", rounds
        yield f"the compressor of segments[{i}] is {segment.compressor!r}", compressed


def _rule_of(segment: Segment) -> Rule:
    return segment.optimizer.rule() if segment.optimizer else Rule("sgd", (0.0,))


def _parts(config: TableConfig, layout: RowLayout, device: torch.device) -> Iterator[RowSegment]:
    """Yields the segments for kernels; those of a serving table neither learn nor draw values."""
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


_ROOM = 1.25  # slots per key, so that no key is refused below the capacity


class DeviceFeed:
    """The change feeds and open snapshots of a table. Not thread-safe.

    Code that changes rows calls `before_change` first and `mark` afterwards.
    """

    def __init__(self, name: str, slots: DeviceSlots) -> None:
        self._name, self._slots = name, slots
        self._consumers: dict[str, DeviceTouched] = {}
        self._snapshots: list[ref[DeviceSnapshot]] = []  # opened since the last change

    # ---- for consumers

    def touched(
        self,
        consumer: str,
        *,
        capacity: int = DEFAULT_CAPACITY,
        all_changes: bool = False,
        overflow: Overflow = "whole_table",
    ) -> DeviceTouched:
        """Returns the change feed with this name, opened if needed; see `DeviceTable.touched`."""
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
        """Returns the open change feed with this name, or None."""
        return self._consumers.get(name)

    def snapshot(self, max_ts: int) -> DeviceSnapshot:
        """Returns all rows as they are at this call; `max_ts` is their largest time."""
        arrays, slices = self._slots.arrays, self._slots.slices(None)
        parts = (self._slots.entries(arrays, arrays.ids(slots), slots) for slots in slices)
        size = sum(map(len, slices))
        opened = DeviceSnapshot(self._name, parts, size, max_ts)
        self._snapshots.append(ref(opened))
        return opened

    def nbytes(self) -> int:
        """Returns the bytes of device memory that the change feeds take."""
        return sum(consumer.nbytes for consumer in self._consumers.values())

    # ---- for writes

    def before_change(self) -> None:
        """Lets open snapshots copy the rows they have not read yet, before rows change.

        Each snapshot copies only once, because it then has all rows.
        """
        while self._snapshots:
            opened = self._snapshots.pop()()
            if opened is not None:
                opened.keep()

    def is_watched(self, *, learned: bool) -> bool:
        """Returns whether a consumer collects the keys of an update (`learned`) or other write."""
        return bool(self._consumers and self._wanting(learned=learned))

    def mark(
        self, ids: Int64[Tensor, "n"], touched: Bool[Tensor, "n"], *, learned: bool = False
    ) -> None:
        """Reports to consumers that the rows of the `touched` ids were written."""
        for consumer in self._wanting(learned=learned) if len(ids) else ():
            consumer.mark(ids, touched)

    def mark_all(self) -> None:
        """Reports to consumers of all changes that any row may have changed."""
        for consumer in self._wanting(learned=False):
            consumer.mark_all()

    def _wanting(self, *, learned: bool) -> list[DeviceTouched]:
        return [c for c in self._consumers.values() if learned or c.settings.all_changes]


class DeviceTouched:
    """The touched keys of one consumer of one table, from `DeviceTable.touched`.

    It works as `TouchedKeys`, with ids on the table's device. When it is opened, it allocates about
    20 bytes per key of its capacity. With `overflow="forget"`, the capacity is checked once per
    call. Not thread-safe, like the table.
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
        self.since: str | None = None  # a value of the consumer: what it delivered last
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
        """The bytes of device memory that it takes."""
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
        """Records that any key of the table may have changed."""
        self._whole.fill_(1)

    def take(self) -> TouchedBatch:
        """Returns and forgets the keys touched since the last take; waits for the device."""
        self._check_open()
        whole, forgotten = bool(self._whole), int(self._forgotten)
        ids = self._keys.ids(self._keys.taken().nonzero()[:, 0])
        self._empty()
        return TouchedBatch(ids[:0] if whole else ids, whole, forgotten)

    def give_back(self, taken: TouchedBatch | Int64[Tensor, "n"]) -> None:
        """Gives back keys that could not be delivered; the next take returns them."""
        self._check_open()
        ids = taken.ids if isinstance(taken, TouchedBatch) else taken
        checks.tensor("ids", ids, torch.int64, (None,), self._size.device)
        if isinstance(taken, TouchedBatch) and taken.whole_table:
            if self.settings.overflow == "forget":
                raise InputError(
                    "a whole table given back to a consumer with overflow='forget', which cannot "
                    "record that; give ids back instead."
                )
            self.mark_all()
        self.mark(ids, torch.ones_like(ids, dtype=torch.bool))

    def size(self) -> int:
        """Returns the number of keys to be taken; 0 if the whole table is to be taken."""
        self._check_open()
        return 0 if bool(self._whole) else int(self._size)

    def overflows(self) -> int:
        """Returns how often more keys than the capacity were touched since the opening."""
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
                f"table.touched({self.name!r}): it then collects changes from that point on."
            )


class DeviceSnapshot:
    """All rows of a table at one instant (`DeviceTable.snapshot`), in slices in host memory.

    A scan copies each slice from the device when it reads it. The first write after the snapshot
    copies the slices not read yet to host memory before it changes a row. A save without concurrent
    training therefore holds only one slice at a time. Several scans, also on several threads, share
    the rows: each row is given once in all.
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
        """Does nothing: no writer waits for a snapshot of a device table."""

    def scan(self, rows: int | None = None) -> Iterator[Entries]:
        """Yields the rows, in the slices of the table's own scan; `rows` is ignored."""
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
        """Copies the slices not read yet to host memory, because the table is about to change."""
        with self._reading:
            self._aside.extend(part.to("cpu") for part in self._slices)

    def close(self) -> None:
        """Frees the copied rows; a second call does nothing."""
        with self._reading:
            self._closed = True
            self._slices = iter(())
            self._aside.clear()
