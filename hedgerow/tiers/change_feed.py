"""Change feeds and snapshots of a table of two tiers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..core import checks
from ..core.errors import InputError, NameTakenError
from ..core.shapes import Int64
from ..tables.host import HostTable
from ..tables.store import Entries
from ..tables.touched import DEFAULT_CAPACITY, Overflow, Touched, TouchedSettings
from .tier_pair import TierWrites

if TYPE_CHECKING:
    from ..tables.device import DeviceTable


class TierTouched:
    """One consumer's touched keys, from `touched` of a table of two tiers; as `TouchedKeys`.

    A key that was touched in both tiers is given once. Moving from tier to tier is no change.
    """

    def __init__(
        self,
        name: str,
        settings: TouchedSettings,
        fast: Any,
        slow: Any,
        forget_name: Callable[[str], object],
    ) -> None:
        self.name, self.settings = name, settings
        self.since: str | None = None  # the consumer's own mark of what it delivered last
        self.delivering = threading.Lock()  # held by one who has taken keys and not yet delivered
        self._fast, self._slow, self._forget_name = fast, slow, forget_name

    def __repr__(self) -> str:
        return f"TierTouched({self._fast!r}, {self._slow!r})"

    def take(self) -> Touched:
        """The keys touched since the last take; it starts collecting anew."""
        taken: list[Touched] = []
        try:
            taken = [self._slow.take()]
            taken.append(self._fast.take())
            ids = torch.cat([one.ids.cpu() for one in taken]).unique()
        except BaseException:
            for one in taken:
                self._slow.give_back(replace(one, ids=one.ids.cpu()))
            raise
        slow, fast = taken
        whole = slow.whole_table or fast.whole_table
        if self.settings.overflow == "whole_table":
            whole = whole or len(ids) > self.settings.capacity
        return Touched(ids[:0] if whole else ids, whole, slow.forgotten + fast.forgotten)

    def give_back(self, taken: Touched | Int64[Tensor, "n"]) -> None:
        """Puts keys back for the next take: what was taken could not be delivered."""
        self._slow.give_back(taken)

    def size(self) -> int:
        """Keys that wait to be taken; one that was touched in both tiers counts twice."""
        return self._fast.size() + self._slow.size()

    def overflows(self) -> int:
        """How often a tier had more keys than the capacity, since the consumer was opened."""
        return self._fast.overflows() + self._slow.overflows()

    def close(self) -> None:
        """Stops collecting and frees the name; a second call does nothing."""
        self._forget_name(self.name)
        self._fast.close()
        self._slow.close()


class TierSnapshot:
    """The snapshots of `stores`, which hold the rows, read one after the other."""

    def __init__(self, stores: Sequence[Any], max_ts: int, resume: Callable[[], None]) -> None:
        with ExitStack() as opened:
            self._parts = [opened.enter_context(store.snapshot()) for store in stores]
            self._close = opened.pop_all()
        self.size = sum(part.size for part in self._parts)
        self.max_ts = max_ts
        self._resume = resume

    def __repr__(self) -> str:
        return f"TierSnapshot({', '.join(map(repr, self._parts))})"

    def __enter__(self) -> TierSnapshot:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def resume(self) -> None:
        """Lets writers go on that wait since the snapshot was opened `paused`."""
        resume, self._resume = self._resume, _nothing
        resume()

    def scan(self, rows: int | None = None) -> Iterator[Entries]:
        """The rows, in slices, in no particular order; several scans share them."""
        for part in self._parts:
            for entries in part.scan(rows):
                yield entries.to("cpu")

    def close(self) -> None:
        """Gives memory back and lets waiting writers go on; a second call does nothing."""
        self.resume()
        self._close.close()


def _nothing() -> None:
    """Writers were let go already: a pause now would be another snapshot's."""


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
