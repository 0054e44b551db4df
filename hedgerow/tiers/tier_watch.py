"""What others may follow of a table of two tiers: changing keys, all rows at one instant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..core import checks
from ..core.errors import InputError, NameTakenError
from ..tables.host import HostTable
from ..tables.touched import DEFAULT_CAPACITY, Overflow, TouchedSettings
from .tier_snapshot import TierSnapshot
from .tier_touched import TierTouched
from .tier_writes import TierWrites

if TYPE_CHECKING:
    from ..tables.device import DeviceTable


class TierWatch(TierWrites):
    """The watched part of a table of two tiers."""

    def __init__(self, fast: HostTable | DeviceTable, slow: HostTable, fast_rows: int) -> None:
        super().__init__(fast, slow, fast_rows)
        self._consumers: dict[str, TierTouched] = {}

    def touched(
        self,
        consumer: str,
        *,
        capacity: int = DEFAULT_CAPACITY,
        all_changes: bool = False,
        overflow: Overflow = "whole_table",
    ) -> TierTouched:
        """The keys changed since `consumer` last took them; as `HostTable.touched`."""
        settings = TouchedSettings(capacity, all_changes, overflow)
        asked: dict[str, Any] = {
            "capacity": capacity,
            "all_changes": all_changes,
            "overflow": overflow,
        }
        with self._writing:
            known = self._consumers.get(consumer)
            if known is None:
                fast, slow = (s.touched(consumer, **asked) for s in (self.fast, self.slow))
                known = TierTouched(consumer, settings, fast, slow, self._forget)
                self._consumers[consumer] = known
        if known.settings != settings:
            raise NameTakenError(
                f"consumer {consumer!r} of table {self.config.name!r} is open with "
                f"{known.settings}, not {settings}; close it first, or choose another name."
            )
        return known

    def consumer(self, name: str) -> TierTouched | None:
        """The consumer of touched keys that is open under a name, if one is."""
        return self._consumers.get(name)

    def _forget(self, consumer: str) -> None:
        self._consumers.pop(consumer, None)

    def snapshot(
        self, *, at_start: Callable[[], object] | None = None, paused: bool = False
    ) -> TierSnapshot:
        """All rows as they are when this returns, to be read while writers and moves go on.

        As `HostTable.snapshot`.
        """
        if at_start is not None and not callable(at_start):
            raise InputError(f"at_start is {at_start!r}; it must be a function without arguments.")
        checks.flag("paused", paused)
        # Writers wait outside of the stores: one that waited inside, in the middle of a move, would
        # keep readers out for as long.
        with self._writing:
            self._gather()
            opened = TierSnapshot(self._stores(), self.max_ts(), self._writing.resume)
            self._writing.pause()
            try:
                if at_start is not None:
                    at_start()
            except BaseException:
                opened.close()
                raise
            if not paused:
                opened.resume()
        return opened

    def _stores(self) -> Sequence[Any]:
        """Which stores together have every row once, after `_gather`."""
        raise NotImplementedError

    @property
    def slot_key(self) -> int:
        """The secret by which the slow tier places ids."""
        return self.slow.slot_key

    def use_slot_key(self, slot_key: int) -> None:
        """Places ids by this key from now on; only before rows are there.

        The fast tier keeps its own: it may share its memory, and its key, with those of other
        tables. Where a run must be the same on a full cache, the config names a key.
        """
        self.slow.use_slot_key(slot_key)

    def beside(self, rows: int, *, slot_key: int | None = None) -> HostTable:
        """An empty table of one tier, to fill and then exchange rows with."""
        return self.slow.beside(rows, slot_key=slot_key)

    def exchange_rows(self, other: HostTable) -> None:
        """Swaps all rows with a table of the same config: they are all in the slow store then.

        Filters and counts stay; consumers of all changes see the whole table as changed.
        """
        with self._writing, self._moves.alone():
            self._all_to_slow()
            self.slow.exchange_rows(other)
            self._replaced()

    def _all_to_slow(self) -> None:
        """No row is in the fast store any more; the caller has the table alone."""
        raise NotImplementedError

    def _replaced(self) -> None:
        """All rows are others now."""

    def _gather(self) -> None:
        """Brings rows that are on their way to where they belong."""
