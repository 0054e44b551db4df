"""When rows are evicted: the rules, the order of eviction, and the stamps of writes.

A row keeps the time of its last write. In tables with a rule of room it also keeps its place in
the order of eviction.

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
import numbers
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from ..core import checks
from ..core.clock import Clock
from ..core.counters import Counters
from ..core.errors import ConfigError, InputError
from ..core.hashing import slot_of
from ..core.process_state import ForkLock
from ..core.records import Record
from ..core.shapes import Bool, Float64, Int64
from ..core.units import parse_seconds
from ..core.use_weights import AHEAD, FRACTION_BITS, MARK, MARK_BITS, ONE
from .store import Entries

SLOTS = 2**15  # of a v2 id
_DAY_S = 86400
_MAX_AGE_S = 2**53  # longer than any stamp, and floats hold it exactly
_USES_PER_ROW = 32  # of a half-life of `Lfu`


class Eviction(Record):
    """Base of every rule."""


@dataclass(frozen=True)
class Ttl(Eviction):
    """Rows leave when they have not been updated for `age`: "7d", "36h", or a number of days.

    `slots` gives slots of v2 ids an age of their own. Age is counted from `reference`: "newest" is
    the newest update of the table, so that a replayed old stream expires nothing by itself and an
    idle table keeps its rows; "wall" is the clock. A row of exactly that age has expired, so age 0
    expires everything. Rows written without a time have time 0.

    >>> rule = Ttl("7d", slots={1: "36h", 2: 30})
    >>> rule.age_s(0), rule.age_s(1), rule.age_s(2)
    (604800, 129600, 2592000)
    """

    kind = "ttl"
    age: str | float
    slots: Mapping[int, str | float] | tuple[tuple[int, str | float], ...] = field(
        default=(), kw_only=True
    )
    reference: str = field(default="newest", kw_only=True)

    def __post_init__(self) -> None:
        _age_s("age", self.age)
        pairs = tuple(self.slots.items()) if isinstance(self.slots, Mapping) else self.slots
        if not isinstance(pairs, tuple) or not all(
            isinstance(pair, tuple) and len(pair) == 2 for pair in pairs
        ):
            raise ConfigError(
                f"Ttl.slots is {self.slots!r}; give a dict from slot to age, for example "
                f"{{1: '5d'}}."
            )
        for slot, age in pairs:
            checks.whole("Ttl", "slots", slot)
            if slot >= SLOTS:
                raise ConfigError(f"Ttl.slots has slot {slot}; slots lie in 0..{SLOTS - 1}.")
            _age_s(f"slots[{slot}]", age)
        if len({slot for slot, _ in pairs}) != len(pairs):
            raise ConfigError(f"Ttl.slots is {self.slots!r}; it names a slot twice.")
        # Pairs in order: a dict could change under the rule, and has no place in a file.
        object.__setattr__(self, "slots", tuple(sorted(pairs)))
        checks.choice("Ttl", "reference", self.reference, ("newest", "wall"))

    def age_s(self, slot: int) -> int:
        """Seconds without an update after which a row of `slot` has expired."""
        return _age_s("age", dict(self.slots).get(slot, self.age))

    def shortest_s(self) -> int:
        """The smallest `age_s` of any slot."""
        return min(_age_s("age", age) for age in (self.age, *dict(self.slots).values()))

    def ages_s(self) -> Int64[Tensor, "slots"]:
        """`age_s` of every slot."""
        ages = torch.full((SLOTS,), _age_s("age", self.age), device="cpu")
        for slot, age in dict(self.slots).items():
            ages[slot] = _age_s("slots", age)
        return ages


@dataclass(frozen=True)
class Lru(Eviction):
    """`rows` rows may stay; those that were not updated for longest leave first.

    What counts is the `ts` of the writes, and among rows of one time the order of the calls that
    wrote them, however many came in a second. Of rows that one call wrote the smallest ids leave
    first.

    >>> Lru(1_000_000).rows
    1000000
    """

    kind = "lru"
    rows: int

    def __post_init__(self) -> None:
        checks.whole("Lru", "rows", self.rows, least=1)


@dataclass(frozen=True, slots=True)
class HalfLife:
    """After how long a use counts half: in uses of the table, or in seconds; the other is 0."""

    uses: int = 0
    seconds: int = 0


@dataclass(frozen=True)
class Lfu(Eviction):
    """`rows` rows may stay; the least often updated leave first, the oldest of them before others.

    Every occurrence of an id in a writing call is a use. Uses fade: one of a `half_life` ago counts
    half. A half-life is a time ("7d", "36h"), counted by the `ts` of the writes, or a number of
    uses of the table: ids that its writing calls name, repeats included. The default is 32 uses for
    every row that may stay. Shorter ones follow a changing stream sooner, longer ones know better
    what is used often. `table.uses(ids)` tells the counts, which are exact up to 16,384.

    >>> Lfu(1_000_000).half_life_is().uses
    32000000
    >>> Lfu(1_000_000, half_life="1d").half_life_is().seconds
    86400
    """

    kind = "lfu"
    rows: int
    half_life: str | int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        checks.whole("Lfu", "rows", self.rows, least=1)
        self.half_life_is()

    def half_life_is(self) -> HalfLife:
        """The half-life as a number."""
        given = self.half_life
        if given is None:
            return HalfLife(uses=_USES_PER_ROW * self.rows)
        if isinstance(given, str):
            seconds = _age_s("half_life", given, "Lfu")
            if seconds < 1:
                raise ConfigError(f"Lfu.half_life is {given!r}; it must be at least a second.")
            return HalfLife(seconds=seconds)
        if type(given) is not int or not 1 <= given <= _MAX_AGE_S:
            raise ConfigError(
                f"Lfu.half_life is {given!r}; give a time such as '7d', or a number of uses from "
                f"1 to {_MAX_AGE_S}."
            )
        return HalfLife(uses=given)


@dataclass(frozen=True, slots=True, eq=False)
class Evicted:
    """What an eviction removed: how many rows, and on request which ones, in the order of ids."""

    rows: int
    ids: Int64[Tensor, "rows"] | None = None
    ts: Int64[Tensor, "rows"] | None = None


def expired(
    ids: Int64[Tensor, "n"], ts: Int64[Tensor, "n"], reference_s: int, rule: Eviction | None
) -> Bool[Tensor, "n"]:
    """Which rows, of times `ts`, have expired at `reference_s`; none under a rule of room or None.

    >>> expired(torch.tensor([1, 2]), torch.tensor([0, 1]), 86400, Ttl("1d")).tolist()
    [True, False]
    """
    checks.tensor("ids", ids, torch.int64, (None,), device=None)
    checks.tensor("ts", ts, torch.int64, (len(ids),), ids.device)
    if not isinstance(rule, Ttl):
        return torch.zeros_like(ids, dtype=torch.bool)
    ages_s = rule.ages_s().to(ids.device)
    return checks.count("reference_s", reference_s) - ts >= ages_s[slot_of(ids)]


def _age_s(name: str, age: object, rule: str = "Ttl") -> int:
    """Ages in whole seconds: times are whole, so a fraction of one counts as one."""
    if isinstance(age, str):
        try:
            seconds = parse_seconds(age)
        except InputError as error:
            raise ConfigError(f"{rule}.{name}: {error}") from error
    elif isinstance(age, numbers.Real) and not isinstance(age, bool):
        seconds = float(age) * _DAY_S
    else:
        raise ConfigError(
            f"{rule}.{name} is {age!r}; give a duration such as '7d', or a number of days."
        )
    if not 0 <= seconds <= _MAX_AGE_S:
        raise ConfigError(f"{rule}.{name} is {age!r}; it must lie in 0..{_MAX_AGE_S} seconds.")
    return math.ceil(round(seconds, 6))  # 0.1 days are 8640 s, not a little more


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
class EvictionOrderState:
    """What a checkpoint holds of a `EvictionOrder`."""

    newest: int  # mark
    half_lives: float  # passed


@runtime_checkable
class HasEvictionOrder(Protocol):
    """A table that may have an order of leaving."""

    @property
    def order(self) -> EvictionOrder | None:
        """What tells the order; None without a rule of room."""
        ...


class EvictionOrder:
    """The marks that a table with a rule of room gives: one to each writing call. Thread-safe.

    Stores that hold rows of one table share it, so that their marks compare.

    >>> order = EvictionOrder(Lru(9))
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
    def of(rule: Eviction | None) -> EvictionOrder | None:
        """The order of a rule; None for a table that has no rule of room."""
        return EvictionOrder(rule) if isinstance(rule, Lru | Lfu) else None

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

        >>> order = EvictionOrder(Lfu(9, half_life="1d"))
        >>> order.uses(torch.tensor([0, order.stamp(0), order.stamp(0) + ONE])).tolist()
        [0.0, 1.0, 2.0]
        """
        now = self._newest
        unrolled = now + AHEAD - ((now + AHEAD - marks) & MARK)
        exponents = (unrolled >> FRACTION_BITS) - (now >> FRACTION_BITS)
        weights = torch.ldexp(1 + (unrolled & ONE - 1).double() / ONE, exponents)
        return torch.where(marks == 0, 0.0, weights / (1 + (now & ONE - 1) / ONE))

    # ---- checkpoints

    def state(self) -> EvictionOrderState:
        """What a table needs beside its rows to go on as this one."""
        with self._lock:
            return EvictionOrderState(self._newest, self._half_lives)

    def restore(self, state: EvictionOrderState) -> None:
        """Goes on from there, or from where it is, whichever is later."""
        with self._lock:
            self._half_lives = max(self._half_lives, state.half_lives)
            if self.by_use:
                self._newest = weight_at(self._half_lives)
            else:
                self._newest = max(self._newest, state.newest)


def one_call(order: EvictionOrder | None, ts: int, uses: int) -> AbstractContextManager[object]:
    """Around writes to several stores that are one call, at a time that is known to be good."""
    return nullcontext() if order is None else order.one_call(ts, uses)


def shown(
    order: EvictionOrder | None, stamps: Int64[Tensor, "n"]
) -> tuple[Int64[Tensor, "n"], Int64[Tensor, "n"] | None]:
    """Times and marks of stamps, as `Entries` has them; of a table without marks the times."""
    return (stamps, None) if order is None else (order.seconds(stamps), order.marks(stamps))


def uses_of(order: EvictionOrder | None, entries: Entries, name: str) -> Float64[Tensor, "n"]:
    """How often the rows of table `name` were used, in uses of now."""
    if order is None or not order.by_use or entries.order is None:
        raise ConfigError(
            f"table {name!r} does not count uses; make its TableConfig with evict=Lfu(...)."
        )
    return order.uses(entries.order)


def join(one: EvictionOrder | None, other: EvictionOrder | None) -> None:
    """Two tables of one rule swap rows: both orders go on behind the later of the two."""
    if one is None or other is None or one is other:
        return
    states = one.state(), other.state()
    other.restore(states[0])
    one.restore(states[1])


def _newest_mark(stamps: Int64[Tensor, "n"]) -> int:
    return int((stamps & MARK).max()) if len(stamps) else 0


_FUTURE_S = 3600  # how far clocks of other machines may run ahead


class WriteStamps:
    """Turns the times of writes into the stamps of rows; a part of every table.

    A stamp is the time, or what `EvictionOrder` makes of it where the table has a rule of room. A
    time more than an hour ahead of the clock would expire all other rows, so it becomes the clock's
    time and counts as a `clamped_ts` event.

    >>> from hedgerow.core.clock import ManualClock
    >>> stamps = Stamps(ManualClock(1000), Counters(), None)
    >>> stamps.stamp(990, uses=1), stamps.stamp(10**9, uses=1)
    (990, 1000)
    """

    def __init__(self, clock: Clock, events: Counters, order: EvictionOrder | None) -> None:
        self.clock = clock
        self.order = order
        self._events = events

    def next_time(self, ts: int) -> int:
        """The time of a write."""
        ts = checks.count("ts", ts)
        now_s = self.clock.now_s() if ts else 0
        if ts <= now_s + _FUTURE_S:
            return ts
        self._events.add("clamped_ts")
        return now_s

    def stamp(self, ts: int, uses: int) -> int:
        """The stamp of a write at time `ts` that uses `uses` ids."""
        ts = self.next_time(ts)
        return ts if self.order is None else self.order.stamp(ts, uses)

    def share_order(self, order: EvictionOrder | None) -> None:
        """Uses the order of another store of the same table from now on, so that marks compare."""
        self.order = order

    def second(self, stamp: int) -> int:
        """The time of a stamp."""
        return stamp if self.order is None else self.order.second(stamp)

    def stamps_of(self, entries: Entries) -> Int64[Tensor, "n"]:
        """The stamps of rows that are put back."""
        now_s, times = self.clock.now_s(), entries.ts.numpy()
        beyond, ts = times > now_s + _FUTURE_S, entries.ts
        if beyond.any():
            self._events.add("clamped_ts", int(beyond.sum()))
            ts = torch.from_numpy(np.where(beyond, now_s, times))
        if self.order is None:
            return ts
        stamps = self.order.stamps(ts, entries.order)
        self.order.saw(stamps)
        return stamps

    def times_of(
        self, stamps: Int64[Tensor, "n"]
    ) -> tuple[Int64[Tensor, "n"], Int64[Tensor, "n"] | None]:
        """Times and marks of stamps, as `Entries` has them."""
        return shown(self.order, stamps)
