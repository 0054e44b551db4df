"""What others may follow of a table in host memory: changing keys, all rows at one instant."""

from __future__ import annotations

from collections.abc import Callable

from .. import native
from ..core import checks
from ..core.errors import InputError, NameTakenError
from ..core.forklock import ForkLock
from .config import TableConfig
from .layout import RowLayout
from .leave_order import LeaveOrder
from .snapshot import ASIDE_BYTES, Snapshot
from .touched import DEFAULT_CAPACITY, Overflow, TouchedKeys, TouchedSettings


class HostWatch:
    """The watched half of `HostTable`."""

    config: TableConfig
    layout: RowLayout
    native_table: native.Table
    _order: LeaveOrder | None

    def _start_watch(self) -> None:
        self._consumers: dict[str, TouchedKeys] = {}
        self._opening = ForkLock()

    def touched(
        self,
        consumer: str,
        *,
        capacity: int = DEFAULT_CAPACITY,
        all_changes: bool = False,
        overflow: Overflow = "whole_table",
    ) -> TouchedKeys:
        """The keys changed since `consumer` last took them; collected from the first call on.

        `apply_gradients` and `reinitialize` count. With `all_changes` so do `assign`, `assign_add`,
        `restore`, `erase` and eviction: a key taken that has no row any more was deleted, and
        `clear` makes the whole table dirty. More than `capacity` keys become `whole_table`; with
        `overflow="forget"` they are dropped and counted, as the original does. A consumer that is
        open already is given again.
        """
        if not isinstance(consumer, str) or not consumer:
            raise InputError(f"consumer is {consumer!r}; it must be a non-empty str.")
        settings = TouchedSettings(capacity, all_changes, overflow)
        with self._opening:
            known = self._consumers.get(consumer)
            if known is None:
                known = TouchedKeys(self.native_table, consumer, settings, self._forget)
                self._consumers[consumer] = known
        if known.settings != settings:
            raise NameTakenError(
                f"consumer {consumer!r} of table {self.config.name!r} is open with "
                f"{known.settings}, not {settings}; close it first, or choose another name."
            )
        return known

    def consumer(self, name: str) -> TouchedKeys | None:
        """The consumer of touched keys that is open under a name, if one is."""
        with self._opening:
            return self._consumers.get(name)

    def _forget(self, consumer: str) -> None:
        with self._opening:
            self._consumers.pop(consumer, None)

    def snapshot(
        self,
        aside_bytes: int = ASIDE_BYTES,
        *,
        at_start: Callable[[], object] | None = None,
        paused: bool = False,
    ) -> Snapshot:
        """All rows as they are when this returns, to be read while writers go on; one at a time.

        `at_start` runs at the snapshot's instant: running writes have ended and those of other
        threads wait until it returns, with `paused` until `resume`: so several tables can be held
        at one instant. Close the snapshot, or use it in a `with`.
        """
        checks.count("aside_bytes", aside_bytes)
        if at_start is not None and not callable(at_start):
            raise InputError(f"at_start is {at_start!r}; it must be a function without arguments.")
        checks.flag("paused", paused)
        return Snapshot(
            *(self.native_table, self.config.name, self.layout, aside_bytes, at_start, paused),
            order=self._order,
        )
