"""What others follow of a table of two tiers: changed keys, and all rows at one instant."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from ..core import checks
from ..core.errors import InputError, NameTakenError
from ..core.shapes import Int64
from ..tables.store import Entries
from ..tables.touched import Overflow, Touched, TouchedSettings
from .tier_pair import TierPair


class ChangeFeeds:
    """The consumers of changed keys of a `TierPair`, by name."""

    def __init__(self, pair: TierPair) -> None:
        self._pair = pair
        self._consumers: dict[str, TierTouched] = {}

    def open(
        self, consumer: str, capacity: int, all_changes: bool, overflow: Overflow
    ) -> TierTouched:
        """The feed of a consumer, opened if it is not open yet; as `HostTable.touched`."""
        settings = TouchedSettings(capacity, all_changes, overflow)
        asked: dict[str, Any] = {
            "capacity": capacity,
            "all_changes": all_changes,
            "overflow": overflow,
        }
        pair = self._pair
        with pair.write_lock:
            known = self._consumers.get(consumer)
            if known is None:
                fast, slow = (s.touched(consumer, **asked) for s in (pair.fast, pair.slow))
                known = TierTouched(consumer, settings, fast, slow, self._forget)
                self._consumers[consumer] = known
        if known.settings != settings:
            raise NameTakenError(
                f"consumer {consumer!r} of table {pair.config.name!r} is open with "
                f"{known.settings}, not {settings}; close it first, or choose another name."
            )
        return known

    def get(self, name: str) -> TierTouched | None:
        """The open feed of a consumer; None if there is none."""
        return self._consumers.get(name)

    def _forget(self, consumer: str) -> None:
        self._consumers.pop(consumer, None)


class TierTouched:
    """The keys of both tiers that changed since one consumer last took them; as `TouchedKeys`.

    A key that changed in both tiers is given once. A move between the tiers is no change.
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
        self.since: str | None = None  # the consumer's own mark of its last delivery
        self.delivering = threading.Lock()  # held between a take and its delivery
        self._fast, self._slow, self._forget_name = fast, slow, forget_name

    def __repr__(self) -> str:
        return f"TierTouched({self._fast!r}, {self._slow!r})"

    def take(self) -> Touched:
        """The keys that changed since the last take. Collecting starts anew."""
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
        """Puts keys back for the next take, after a failed delivery."""
        self._slow.give_back(taken)

    def size(self) -> int:
        """Keys that wait to be taken. A key that changed in both tiers counts twice."""
        return self._fast.size() + self._slow.size()

    def overflows(self) -> int:
        """How often a tier had more keys than the capacity since the feed was opened."""
        return self._fast.overflows() + self._slow.overflows()

    def close(self) -> None:
        """Stops collecting and frees the name. A second call does nothing."""
        self._forget_name(self.name)
        self._fast.close()
        self._slow.close()


class TierSnapshot:
    """The snapshots of the `stores` that hold the rows, read one after the other."""

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
        """Lets writers continue that have waited since the snapshot was opened `paused`."""
        resume, self._resume = self._resume, _do_nothing
        resume()

    def scan(self, rows: int | None = None) -> Iterator[Entries]:
        """The rows in slices, in no particular order. Several scans share them."""
        for part in self._parts:
            for entries in part.scan(rows):
                yield entries.to("cpu")

    def close(self) -> None:
        """Frees memory and lets waiting writers continue. A second call does nothing."""
        self.resume()
        self._close.close()


def _do_nothing() -> None:
    """Replaces `resume` after its first call: a later pause belongs to another snapshot."""


def open_snapshot(
    pair: TierPair,
    stores: Callable[[], Sequence[Any]],
    at_start: Callable[[], object] | None,
    paused: bool,
) -> TierSnapshot:
    """All rows as they are when this returns; as `HostTable.snapshot`.

    `stores` is called with the write lock held. It returns the stores that together have every row
    once.
    """
    if at_start is not None and not callable(at_start):
        raise InputError(f"at_start is {at_start!r}; it must be a function without arguments.")
    checks.flag("paused", paused)
    # Writers wait for the lock, not inside a store. A writer that waited inside a store, in the
    # middle of a move, would keep readers out for as long.
    with pair.write_lock:
        opened = TierSnapshot(stores(), pair.max_ts(), pair.write_lock.resume)
        pair.write_lock.pause()
        try:
            if at_start is not None:
                at_start()
        except BaseException:
            opened.close()
            raise
        if not paused:
            opened.resume()
    return opened
