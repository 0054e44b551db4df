"""What others follow of a table on a device: which keys change, and all rows at one instant."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from weakref import ref

import torch
from torch import Tensor

from ..core import checks
from ..core.errors import InputError, NameTakenError, StateError
from ..core.shapes import Bool, Int64
from ..kernels.find_or_insert import find_or_insert
from ..kernels.layout import LANES, Arrays
from .device_slots import DeviceSlots
from .slot_key import slot_key_of
from .store import Entries
from .touched import DEFAULT_CAPACITY, Overflow, Touched, TouchedSettings

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

    def take(self) -> Touched:
        """The keys touched since the last take; waits for the device. Collecting starts again."""
        self._check_open()
        whole, forgotten = bool(self._whole), int(self._forgotten)
        ids = self._keys.ids(self._keys.taken().nonzero()[:, 0])
        self._empty()
        return Touched(ids[:0] if whole else ids, whole, forgotten)

    def give_back(self, taken: Touched | Int64[Tensor, "n"]) -> None:
        """Puts keys that were taken but could not be delivered back, for the next take."""
        self._check_open()
        ids = taken.ids if isinstance(taken, Touched) else taken
        checks.tensor("ids", ids, torch.int64, (None,), self._size.device)
        if isinstance(taken, Touched) and taken.whole_table:
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
