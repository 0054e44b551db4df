"""Eviction of rows: the rules, the order in which rows leave, and the stamps of writes.

Every row keeps a stamp, which holds the time of its last write. With a `Ttl` rule or no rule, the
stamp is the time in whole seconds. Under `Lru` and `Lfu`, which limit the number of rows, the stamp
has the time in the upper 32 bits (up to the year 2106) and a mark in the lower 31:

- `Lru`: the number of the writing call, which orders the calls within one second.
- `Lfu`: the weight of all uses of the row. The weight of a new use doubles with every half-life, so
  old weights need not be reduced: they become small relative to the weight of a new use. A weight
  is a float of 31 bits, with 17 bits of exponent and 14 bits of fraction.

Mark 0 means that there is no mark. Call numbers and exponents wrap around, so marks are compared by
their distance from the newest mark.
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

SLOTS = 2**15  # feature slots of v2 ids
_DAY_S = 86400
_MAX_AGE_S = 2**53  # longer than any stamp, and exact as a float
_USES_PER_ROW = 32  # the default half-life of `Lfu`


class Eviction(Record):
    """Base of every eviction rule."""


@dataclass(frozen=True)
class Ttl(Eviction):
    """Evicts rows that were not updated for `age`: "7d", "36h", or a number of days.

    `slots` sets a different age for single feature slots of v2 ids. `reference` is the time up to
    which the age is counted. "newest" is the newest update of the table: replaying an old stream
    then does not expire rows by itself, and an idle table keeps its rows. "wall" is the clock. A
    row of exactly that age has expired, so age 0 expires every row. Rows written without a time
    have time 0.

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
        # sorted pairs: a dict could be changed later, and a file cannot hold one
        object.__setattr__(self, "slots", tuple(sorted(pairs)))
        checks.choice("Ttl", "reference", self.reference, ("newest", "wall"))

    def age_s(self, slot: int) -> int:
        """Returns the seconds without an update after which a row of `slot` has expired."""
        return _age_s("age", dict(self.slots).get(slot, self.age))

    def shortest_s(self) -> int:
        """Returns the smallest `age_s` of all slots."""
        return min(_age_s("age", age) for age in (self.age, *dict(self.slots).values()))

    def ages_s(self) -> Int64[Tensor, "slots"]:
        """Returns `age_s` of every slot."""
        ages = torch.full((SLOTS,), _age_s("age", self.age), device="cpu")
        for slot, age in dict(self.slots).items():
            ages[slot] = _age_s("slots", age)
        return ages


@dataclass(frozen=True)
class Lru(Eviction):
    """Keeps at most `rows` rows; the rows whose last update is oldest leave first.

    Rows are ordered by the `ts` of their last write, and among equal times by the order of the
    writing calls. Of the rows that one call wrote, those with the smallest ids leave first.

    >>> Lru(1_000_000).rows
    1000000
    """

    kind = "lru"
    rows: int

    def __post_init__(self) -> None:
        checks.whole("Lru", "rows", self.rows, least=1)


@dataclass(frozen=True, slots=True)
class HalfLife:
    """The age at which a use counts half: in uses of the table or in seconds; the other is 0."""

    uses: int = 0
    seconds: int = 0


@dataclass(frozen=True)
class Lfu(Eviction):
    """Keeps at most `rows` rows; the least used rows leave first.

    Among equally used rows, the oldest leave first. Every occurrence of an id in a writing call is
    a use. A use that is one `half_life` old counts half. A half-life is a time ("7d", "36h"),
    measured by the `ts` of the writes, or a number of uses of the table, which is the number of ids
    in its writing calls, repeats included. The default is 32 uses per row of the limit. A short
    half-life follows a changing stream faster; a long one ranks rows by use more precisely.
    `table.uses(ids)` returns the number of uses, which is exact up to 16,384.

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
        """Returns the half-life as a number."""
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
    """What an eviction removed: how many rows, and on request their ids, in order, and times."""

    rows: int
    ids: Int64[Tensor, "rows"] | None = None
    ts: Int64[Tensor, "rows"] | None = None


def expired(
    ids: Int64[Tensor, "n"], ts: Int64[Tensor, "n"], reference_s: int, rule: Eviction | None
) -> Bool[Tensor, "n"]:
    """Returns which rows, with times `ts`, have expired at `reference_s`.

    No row expires under a rule other than `Ttl`.

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
    """Returns an age in whole seconds, rounded up because times are whole seconds."""
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
    return math.ceil(round(seconds, 6))  # 0.1 days must give 8640 s, not 8641


LAST_S = 2**32 - 1  # the largest time in a stamp with a mark


def weight_at(half_lives: float) -> int:
    """Returns the mark of one use after this many half-lives.

    >>> weight_at(0) == ONE, weight_at(3) - weight_at(2) == ONE
    (True, True)
    """
    whole = math.floor(half_lives)
    fraction = round((2.0 ** (half_lives - whole) - 1) * ONE)
    return (((whole + 1) << FRACTION_BITS) + fraction & MARK) or 1


@dataclass(frozen=True, slots=True)
class EvictionOrderState:
    """What a checkpoint stores of an `EvictionOrder`."""

    newest: int  # the newest mark
    half_lives: float  # half-lives passed so far


@runtime_checkable
class HasEvictionOrder(Protocol):
    """A table that may have an eviction order."""

    @property
    def order(self) -> EvictionOrder | None:
        """The eviction order of rows; None without an `Lru` or `Lfu` rule."""
        ...


class EvictionOrder:
    """Gives the marks of a table with an `Lru` or `Lfu` rule, one per writing call. Thread-safe.

    Stores that hold rows of the same table share one order, so that their marks are comparable.

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
        self._half_lives = 0.0  # half-lives passed so far
        self._call: int | None = None  # the mark of a call that writes to several stores

    @staticmethod
    def of(rule: Eviction | None) -> EvictionOrder | None:
        """Returns the order of a rule; None for a rule other than `Lru` or `Lfu`."""
        return EvictionOrder(rule) if isinstance(rule, Lru | Lfu) else None

    @property
    def kind(self) -> str:
        """The core's name for such marks."""
        return "uses" if self.by_use else "turn"

    @property
    def top(self) -> int:
        """The largest mark that a row may have now."""
        return (self._newest + AHEAD) & MARK if self.by_use else self._newest

    # ---- writes

    def stamp(self, ts: int, uses: int = 1) -> int:
        """Returns the stamp of the next writing call, which uses `uses` ids."""
        with self._lock:
            mark = self._call if self._call is not None else self._next(ts, uses)
        return min(ts, LAST_S) << MARK_BITS | mark

    @contextmanager
    def one_call(self, ts: int, uses: int) -> Iterator[None]:
        """Gives all calls inside the block the same mark, as parts of one call with `uses` uses.

        It counts even if no call follows, because other shards of the table may have parts of the
        call.
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
            else:  # uses with an older time count as uses of now
                self._half_lives = max(self._half_lives, ts / self._half_life.seconds)
            self._newest = weight_at(self._half_lives)
        return self._newest

    def saw(self, stamps: Int64[Tensor, "n"] | int) -> None:
        """Records stamps from another store; the next call will be later than all of them."""
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
        """Returns the times of stamps."""
        return stamps >> MARK_BITS

    @staticmethod
    def second(stamp: int) -> int:
        """Returns the time of one stamp."""
        return stamp >> MARK_BITS

    @staticmethod
    def marks(stamps: Int64[Tensor, "n"]) -> Int64[Tensor, "n"]:
        """Returns the marks of stamps."""
        return stamps & MARK

    @staticmethod
    def stamps(ts: Int64[Tensor, "n"], marks: Int64[Tensor, "n"] | None) -> Int64[Tensor, "n"]:
        """Returns the stamps of times and marks. Without marks, the rows count as never used."""
        stamps = ts.clamp(max=LAST_S) << MARK_BITS
        return stamps if marks is None else stamps | (marks & MARK)

    def ranks(self, stamps: Int64[Tensor, "n"]) -> Int64[Tensor, "n"]:
        """Returns numbers by which rows leave, smallest first.

        Of equal rows, the smallest id leaves first.
        """
        marks = stamps & MARK
        place = torch.where(marks == 0, 0, (marks - self.top - 1) & MARK)
        if self.by_use:
            return place << 32 | stamps >> MARK_BITS
        return (stamps & ~MARK) | place

    def uses(self, marks: Int64[Tensor, "n"]) -> Float64[Tensor, "n"]:
        """Returns how often rows were used; a use that is one half-life old counts half.

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
        """Returns what a table needs besides its rows to continue this order."""
        with self._lock:
            return EvictionOrderState(self._newest, self._half_lives)

    def restore(self, state: EvictionOrderState) -> None:
        """Continues from `state` or from the present state, whichever is later."""
        with self._lock:
            self._half_lives = max(self._half_lives, state.half_lives)
            if self.by_use:
                self._newest = weight_at(self._half_lives)
            else:
                self._newest = max(self._newest, state.newest)


def one_call(order: EvictionOrder | None, ts: int, uses: int) -> AbstractContextManager[object]:
    """Returns a context for writes to several stores that are one call; `ts` has been checked."""
    return nullcontext() if order is None else order.one_call(ts, uses)


def shown(
    order: EvictionOrder | None, stamps: Int64[Tensor, "n"]
) -> tuple[Int64[Tensor, "n"], Int64[Tensor, "n"] | None]:
    """Returns times and marks of stamps, as in `Entries`.

    Without an order, the stamps are times.
    """
    return (stamps, None) if order is None else (order.seconds(stamps), order.marks(stamps))


def uses_of(order: EvictionOrder | None, entries: Entries, name: str) -> Float64[Tensor, "n"]:
    """Returns how often the rows of table `name` were used, decayed to the present."""
    if order is None or not order.by_use or entries.order is None:
        raise ConfigError(
            f"table {name!r} does not count uses; make its TableConfig with evict=Lfu(...)."
        )
    return order.uses(entries.order)


def join(one: EvictionOrder | None, other: EvictionOrder | None) -> None:
    """Makes both orders continue from the later one, when two tables of one rule swap rows."""
    if one is None or other is None or one is other:
        return
    states = one.state(), other.state()
    other.restore(states[0])
    one.restore(states[1])


def _newest_mark(stamps: Int64[Tensor, "n"]) -> int:
    return int((stamps & MARK).max()) if len(stamps) else 0


_FUTURE_S = 3600  # how far the clocks of other machines may be ahead


class WriteStamps:
    """Turns the times of writes into the stamps of rows; every table has one.

    A stamp is the time, or the stamp of the `EvictionOrder` if the table has one. A time more than
    an hour ahead of the clock would expire all other rows. It is replaced by the clock's time and
    counted as a `clamped_ts` event.

    >>> from hedgerow.core.clock import ManualClock
    >>> stamps = WriteStamps(ManualClock(1000), Counters(), None)
    >>> stamps.stamp(990, uses=1), stamps.stamp(10**9, uses=1)
    (990, 1000)
    """

    def __init__(self, clock: Clock, events: Counters, order: EvictionOrder | None) -> None:
        self.clock = clock
        self.order = order
        self._events = events

    def next_time(self, ts: int) -> int:
        """Returns the checked time of a write."""
        ts = checks.count("ts", ts)
        now_s = self.clock.now_s() if ts else 0
        if ts <= now_s + _FUTURE_S:
            return ts
        self._events.add("clamped_ts")
        return now_s

    def stamp(self, ts: int, uses: int) -> int:
        """Returns the stamp of a write at time `ts` that uses `uses` ids."""
        ts = self.next_time(ts)
        return ts if self.order is None else self.order.stamp(ts, uses)

    def share_order(self, order: EvictionOrder | None) -> None:
        """Uses the order of another store of the same table from now on.

        Marks are then comparable.
        """
        self.order = order

    def second(self, stamp: int) -> int:
        """Returns the time of a stamp."""
        return stamp if self.order is None else self.order.second(stamp)

    def stamps_of(self, entries: Entries) -> Int64[Tensor, "n"]:
        """Returns the stamps of rows that are written back."""
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
        """Returns times and marks of stamps, as in `Entries`."""
        return shown(self.order, stamps)
