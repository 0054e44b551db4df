"""Touched keys of a table on a device: collected there, without waiting, until they are taken."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from torch import Tensor

from ..core import checks
from ..core.errors import InputError, StateError
from ..core.shapes import Bool, Int64
from ..kernels.find_or_insert import find_or_insert
from ..kernels.layout import LANES, Arrays
from .slot_key import slot_key_of
from .touched import Touched, TouchedSettings

_ROOM = 1.25  # places a key: none is refused before the capacity is reached


class DeviceTouched:
    """One consumer's touched keys of one table, from `DeviceTable.touched`.

    As `TouchedKeys`; ids lie on the table's device. It takes its memory at once, about 20 bytes a
    key of the capacity. With `overflow="forget"` the capacity is looked at once a call. Not safe
    from many threads: it is the table's, which is not.
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
        self.delivering = threading.Lock()  # held by one who has taken keys and not yet delivered
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
        """What it holds of the device's memory."""
        return sum(self._keys.nbytes)

    def mark(self, ids: Int64[Tensor, "n"], touched: Bool[Tensor, "n"]) -> None:
        """Adds the `touched` ids; never waits."""
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
        """Any key may have changed."""
        self._whole.fill_(1)

    def take(self) -> Touched:
        """The keys touched since the last take; it starts collecting anew. Waits for the device."""
        self._check_open()
        whole, forgotten = bool(self._whole), int(self._forgotten)
        ids = self._keys.ids(self._keys.taken().nonzero()[:, 0])
        self._empty()
        return Touched(ids[:0] if whole else ids, whole, forgotten)

    def give_back(self, taken: Touched | Int64[Tensor, "n"]) -> None:
        """Puts keys back for the next take: what was taken could not be delivered."""
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
        """Keys that wait to be taken; those of a full consumer do not count."""
        self._check_open()
        return 0 if bool(self._whole) else int(self._size)

    def overflows(self) -> int:
        """How often there were more keys than the capacity, since the consumer was opened."""
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
