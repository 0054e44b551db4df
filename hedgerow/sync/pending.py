"""The keys that one replica still lacks: a bounded set with the age of its oldest key."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.shapes import Int64


@dataclass(frozen=True, slots=True)
class Pass:
    """One search for changed keys.

    It found changes after `since_s`, the start of the search before it.

    All changes before `began_s` were found by this pass or an earlier one. Times are values of
    `time.monotonic()`.
    """

    number: int
    since_s: float
    began_s: float


@dataclass(frozen=True, slots=True, eq=False)
class KeyBatch:
    """Distinct keys by table, from all passes up to `upto`.

    The oldest one changed after `since_s`.
    """

    ids: Mapping[str, Int64[Tensor, "n"]]
    since_s: float | None
    upto: Pass | None

    def __len__(self) -> int:
        return sum(len(ids) for ids in self.ids.values())


class PendingKeys:
    """Keys to be sent, merged over passes. Owns a lock.

    With more than `most` keys the set overflows: it is emptied and stays empty until `open`. Its
    owner must then send all rows.

    >>> pending = PendingKeys(most=2)
    >>> pending.open()
    >>> pending.add({"user": torch.tensor([7, 8])}, Pass(1, 0.0, 1.0))
    True
    >>> batch = pending.take()
    >>> len(batch), len(pending)
    (2, 0)
    >>> pending.put_back(batch)
    True
    >>> pending.add({"user": torch.tensor([8, 9])}, Pass(2, 1.0, 2.0))
    False
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._parts: dict[str, list[Tensor]] = {}
        self._count = 0  # counts repeated keys until they are merged
        self._since_s: float | None = None
        self._upto: Pass | None = None
        self._collects = False

    def __len__(self) -> int:
        return self._count

    @property
    def since_s(self) -> float | None:
        """A time that no pending key changed before; None if none is pending."""
        return self._since_s

    @property
    def collects(self) -> bool:
        """Whether every key since `open` is in the set or was taken."""
        return self._collects

    def open(self) -> None:
        """Empties the set and starts to collect keys."""
        with self._lock:
            self._empty()
            self._collects = True

    def shut(self) -> None:
        """Empties the set and stops collecting keys."""
        with self._lock:
            self._empty()
            self._collects = False

    def add(self, ids: Mapping[str, Int64[Tensor, "n"]], found_by: Pass) -> bool:
        """Adds the keys that a pass found. Returns whether the set still collects keys.

        A set that does not collect records only the pass. Its owner opens it again and sends all
        rows, which include the keys of that pass.
        """
        with self._lock:
            self._upto = found_by
            return self._add(ids, found_by.since_s)

    def take(self) -> KeyBatch:
        """Returns the distinct keys and empties the set.

        If the set does not collect, `upto` of the batch is None, because keys are missing.
        """
        with self._lock:
            upto = self._upto if self._collects else None
            batch = KeyBatch(self._merged(), self._since_s, upto)
            self._empty()
            return batch

    def put_back(self, batch: KeyBatch) -> bool:
        """Adds keys again that could not be sent. Returns whether the set still collects keys."""
        if batch.since_s is None:
            return self._collects
        with self._lock:
            return self._add(batch.ids, batch.since_s)

    def _add(self, ids: Mapping[str, Tensor], since_s: float) -> bool:
        if not self._collects:
            return False
        added = sum(len(one) for one in ids.values())
        if not added:
            return True
        for table, one in ids.items():
            if len(one):
                self._parts.setdefault(table, []).append(one)
        self._since_s = since_s if self._since_s is None else min(since_s, self._since_s)
        self._count += added
        if self._count > self._most:
            merged = self._merged()
            self._parts = {table: [one] for table, one in merged.items()}
            self._count = sum(len(one) for one in merged.values())
            if self._count > self._most:
                self._empty()
                self._collects = False
        return self._collects

    def _merged(self) -> dict[str, Tensor]:
        return {
            table: parts[0] if len(parts) == 1 else torch.cat(parts).unique()
            for table, parts in self._parts.items()
        }

    def _empty(self) -> None:
        self._parts, self._count, self._since_s = {}, 0, None
