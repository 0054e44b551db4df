"""What a plain twin shows of its changes: touched keys as sets, a snapshot as a copy."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .reference_values import at


@dataclass
class _Consumer:
    capacity: int
    all_changes: bool
    forget: bool
    keys: set[int] = field(default_factory=set)
    whole: bool = False
    forgotten: int = 0
    overflows: int = 0

    def mark(self, key: int) -> None:
        if self.whole:
            return
        if self.forget and len(self.keys) > self.capacity:  # before the key is looked at
            self.overflows += 1
            self.forgotten += len(self.keys)
            self.keys.clear()
        self.keys.add(key)
        if len(self.keys) > self.capacity and not self.forget:
            self.overflows += 1
            self.whole = True
            self.keys.clear()


class Watch:
    """The consumers of touched keys of one table, and its snapshot; a part of `Rows`."""

    def __init__(self) -> None:
        self._consumers: dict[int, _Consumer] = {}
        self._opened = 0
        self._snapshot: list[tuple[int, Any]] | None = None
        self._ticket = 0

    @property
    def has_snapshot(self) -> bool:
        """Whether a snapshot is open."""
        return self._snapshot is not None

    def mark(self, keys: Iterable[int], *, learned: bool = False) -> None:
        """Keys have changed: by learning, or otherwise."""
        wanting = [c for c in self._consumers.values() if learned or c.all_changes]
        for key in keys:
            for consumer in wanting:
                consumer.mark(key)

    def all_changed(self) -> None:
        """Any key may have changed: consumers of all changes see the whole table."""
        for number, consumer in self._consumers.items():
            if consumer.all_changes:
                self.touch_all(number)

    # ---- touched keys

    def open_touched(self, capacity: int, all_changes: bool, forget: bool) -> int:
        """A new consumer."""
        self._opened += 1
        self._consumers[self._opened] = _Consumer(capacity, all_changes, forget)
        return self._opened

    def close_touched(self, consumer: int) -> None:
        """Ends a consumer."""
        self._consumers.pop(consumer, None)

    def take_touched(
        self, consumer: int, shard: int, room: int, ids_at: int
    ) -> tuple[int, int, bool, int, bool, int]:
        """All keys at once: there are no shards here."""
        del shard
        taken = self._consumers[consumer]
        if len(taken.keys) > room:
            return 0, 0, False, len(taken.keys), False, 0
        keys, whole, forgotten = sorted(taken.keys), taken.whole, taken.forgotten
        taken.keys, taken.whole, taken.forgotten = set(), False, 0
        at(ids_at, room, np.int64)[: len(keys)] = keys
        return len(keys), 64, True, 0, whole, forgotten

    def touch(self, consumer: int, ids_at: int, n: int) -> None:
        """Puts keys back."""
        for key in at(ids_at, n, np.int64).tolist():
            self._consumers[consumer].mark(key)

    def touch_all(self, consumer: int) -> None:
        """Any key may have changed."""
        self._consumers[consumer].whole = True
        self._consumers[consumer].keys.clear()

    def touched_use(self, consumer: int) -> tuple[int, int]:
        """Keys, overflows."""
        use = self._consumers[consumer]
        return len(use.keys), use.overflows

    # ---- snapshots

    def open_snapshot(self, rows: dict[int, Any], newest: int) -> tuple[int, int, int]:
        """Ticket (0: one is open), rows, newest time."""
        if self._snapshot is not None:
            return 0, 0, 0
        self._ticket += 1
        self._snapshot = list(deepcopy(rows).items())
        return self._ticket, len(self._snapshot), newest

    def read_snapshot(
        self, ticket: int, room: int, ids_at: int, rows_at: int, states_at: int, times_at: int
    ) -> tuple[int, bool, int]:
        """The next rows of the copy: how many, and whether they were the last."""
        if self._snapshot is None or ticket != self._ticket:
            raise RuntimeError(f"snapshot {ticket} is not open")
        part, self._snapshot = self._snapshot[:room], self._snapshot[room:]
        for i, (key, row) in enumerate(part):
            at(ids_at, room, np.int64)[i] = key
            at(rows_at, (room, len(row.values)), np.float32)[i] = row.values
            at(states_at, (room, len(row.state)), np.float32)[i] = row.state
            at(times_at, room, np.int64)[i] = row.time
        return len(part), not self._snapshot, 0

    def close_snapshot(self, ticket: int) -> None:
        """Drops the copy."""
        if ticket == self._ticket:
            self._snapshot = None
