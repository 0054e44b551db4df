"""What a row remembers of its writes: the time, and in tables with a rule of room its place in the
order in which rows leave.

A table without a rule of room keeps whole seconds. Under `Lru` and `Lfu` the stamp of a row is the
time in the upper 32 bits (up to the year 2106) and a mark in the lower 31:

- `Lru`: the number of the writing call, so that calls within a second are told apart.
- `Lfu`: the weight of all uses of the row. A use weighs twice as much as one a half-life before it,
  so weights are added up and never fade; what fades is how they compare with the weight of a use
  now. A weight is a float of 31 bits: an exponent of 17 over a fraction of 14.

Mark 0 is none. Numbers and exponents start anew behind the last one: marks are compared by how far
they lie behind the newest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from ..core.errors import ConfigError
from ..core.forklock import ForkLock
from ..core.shapes import Float64, Int64
from ..core.use_weights import AHEAD, FRACTION_BITS, MARK, MARK_BITS, ONE
from .expiry import Eviction, Lfu, Lru
from .store import Entries

LAST_S = 2**32 - 1  # that a stamp with a mark holds


def weight_at(half_lives: float) -> int:
    """The mark of one use after so many half-lives.

    >>> weight_at(0) == ONE, weight_at(3) - weight_at(2) == ONE
    (True, True)
    """
    whole = math.floor(half_lives)
    fraction = round((2.0 ** (half_lives - whole) - 1) * ONE)
    return (((whole + 1) << FRACTION_BITS) + fraction & MARK) or 1


@dataclass(frozen=True, slots=True)
class OrderState:
    """What a checkpoint holds of a `LeaveOrder`."""

    newest: int  # mark
    half_lives: float  # passed


@runtime_checkable
class Ordered(Protocol):
    """A table that may have an order of leaving."""

    @property
    def order(self) -> LeaveOrder | None:
        """What tells the order; None without a rule of room."""
        ...


class LeaveOrder:
    """The marks that a table with a rule of room gives: one to each writing call. Thread-safe.

    Stores that hold rows of one table share it, so that their marks compare.

    >>> order = LeaveOrder(Lru(9))
    >>> stamps = torch.tensor([order.stamp(77), order.stamp(77)])
    >>> order.seconds(stamps).tolist(), order.marks(stamps).tolist()
    ([77, 77], [1, 2])
    """

    def __init__(self, rule: Lru | Lfu) -> None:
        self._half_life = rule.half_life_is() if isinstance(rule, Lfu) else None
        self.by_use = self._half_life is not None
        self._lock = ForkLock()
        self._newest = 0 if not self.by_use else ONE
        self._half_lives = 0.0  # passed
        self._call: int | None = None  # the mark of a call in several stores

    @staticmethod
    def of(rule: Eviction | None) -> LeaveOrder | None:
        """The order of a rule; None for a table that has no rule of room."""
        return LeaveOrder(rule) if isinstance(rule, Lru | Lfu) else None

    @property
    def kind(self) -> str:
        """What the core calls such marks."""
        return "uses" if self.by_use else "turn"

    @property
    def top(self) -> int:
        """The largest mark that a row may have now."""
        return (self._newest + AHEAD) & MARK if self.by_use else self._newest

    # ---- writes

    def stamp(self, ts: int, uses: int = 1) -> int:
        """The stamp of the next writing call, of so many ids."""
        with self._lock:
            mark = self._call if self._call is not None else self._next(ts, uses)
        return min(ts, LAST_S) << MARK_BITS | mark

    @contextmanager
    def one_call(self, ts: int, uses: int) -> Iterator[None]:
        """Calls within are parts of one of `uses` uses: they get the same mark.

        It counts where there is none, too: the other shards of the table have parts of it.
        """
        if self._call is not None:
            yield
            return
        with self._lock:
            self._call = self._next(ts, uses)
        try:
            yield
        finally:
            self._call = None

    def _next(self, ts: int, uses: int) -> int:
        if self._half_life is None:
            self._newest = (self._newest + 1) & MARK or 1
        else:
            if self._half_life.uses:
                self._half_lives += uses / self._half_life.uses
            else:  # late uses count as uses of now
                self._half_lives = max(self._half_lives, ts / self._half_life.seconds)
            self._newest = weight_at(self._half_lives)
        return self._newest

    def saw(self, stamps: Int64[Tensor, "n"] | int) -> None:
        """Stamps of another store came in: the next call is later than all of them."""
        newest = stamps if isinstance(stamps, int) else int(stamps.max()) if len(stamps) else 0
        with self._lock:
            if self._half_life is None:
                mark = newest & MARK if isinstance(stamps, int) else _newest_mark(stamps)
                self._newest = max(self._newest, mark)
            elif not self._half_life.uses:
                passed = (newest >> MARK_BITS) / self._half_life.seconds
                self._half_lives = max(self._half_lives, passed)
                self._newest = weight_at(self._half_lives)

    # ---- rows

    @staticmethod
    def seconds(stamps: Int64[Tensor, "n"]) -> Int64[Tensor, "n"]:
        """Their times."""
        return stamps >> MARK_BITS

    @staticmethod
    def second(stamp: int) -> int:
        """The time of one."""
        return stamp >> MARK_BITS

    @staticmethod
    def marks(stamps: Int64[Tensor, "n"]) -> Int64[Tensor, "n"]:
        """Their marks."""
        return stamps & MARK

    @staticmethod
    def stamps(ts: Int64[Tensor, "n"], marks: Int64[Tensor, "n"] | None) -> Int64[Tensor, "n"]:
        """Stamps of times and marks; without marks the rows are as if never used."""
        stamps = ts.clamp(max=LAST_S) << MARK_BITS
        return stamps if marks is None else stamps | (marks & MARK)

    def ranks(self, stamps: Int64[Tensor, "n"]) -> Int64[Tensor, "n"]:
        """Rows leave in this order, and of equal ones in that of their ids."""
        marks = stamps & MARK
        place = torch.where(marks == 0, 0, (marks - self.top - 1) & MARK)
        if self.by_use:
            return place << 32 | stamps >> MARK_BITS
        return (stamps & ~MARK) | place

    def uses(self, marks: Int64[Tensor, "n"]) -> Float64[Tensor, "n"]:
        """How often rows were used, in uses of now: one of a half-life ago counts half.

        >>> order = LeaveOrder(Lfu(9, half_life="1d"))
        >>> order.uses(torch.tensor([0, order.stamp(0), order.stamp(0) + ONE])).tolist()
        [0.0, 1.0, 2.0]
        """
        now = self._newest
        unrolled = now + AHEAD - ((now + AHEAD - marks) & MARK)
        exponents = (unrolled >> FRACTION_BITS) - (now >> FRACTION_BITS)
        weights = torch.ldexp(1 + (unrolled & ONE - 1).double() / ONE, exponents)
        return torch.where(marks == 0, 0.0, weights / (1 + (now & ONE - 1) / ONE))

    # ---- checkpoints

    def state(self) -> OrderState:
        """What a table needs beside its rows to go on as this one."""
        with self._lock:
            return OrderState(self._newest, self._half_lives)

    def restore(self, state: OrderState) -> None:
        """Goes on from there, or from where it is, whichever is later."""
        with self._lock:
            self._half_lives = max(self._half_lives, state.half_lives)
            if self.by_use:
                self._newest = weight_at(self._half_lives)
            else:
                self._newest = max(self._newest, state.newest)


def one_call(order: LeaveOrder | None, ts: int, uses: int) -> AbstractContextManager[object]:
    """Around writes to several stores that are one call, at a time that is known to be good."""
    return nullcontext() if order is None else order.one_call(ts, uses)


def shown(
    order: LeaveOrder | None, stamps: Int64[Tensor, "n"]
) -> tuple[Int64[Tensor, "n"], Int64[Tensor, "n"] | None]:
    """Times and marks of stamps, as `Entries` has them; of a table without marks the times."""
    return (stamps, None) if order is None else (order.seconds(stamps), order.marks(stamps))


def uses_of(order: LeaveOrder | None, entries: Entries, name: str) -> Float64[Tensor, "n"]:
    """How often the rows of table `name` were used, in uses of now."""
    if order is None or not order.by_use or entries.order is None:
        raise ConfigError(
            f"table {name!r} does not count uses; make its TableConfig with evict=Lfu(...)."
        )
    return order.uses(entries.order)


def join(one: LeaveOrder | None, other: LeaveOrder | None) -> None:
    """Two tables of one rule swap rows: both orders go on behind the later of the two."""
    if one is None or other is None or one is other:
        return
    states = one.state(), other.state()
    other.restore(states[0])
    one.restore(states[1])


def _newest_mark(stamps: Int64[Tensor, "n"]) -> int:
    return int((stamps & MARK).max()) if len(stamps) else 0
