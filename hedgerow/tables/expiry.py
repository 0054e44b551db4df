"""When rows leave a table: rules of age and of room, and what an eviction removed."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..core import checks
from ..core.errors import ConfigError, InputError
from ..core.fids import slot_of
from ..core.records import Record
from ..core.shapes import Bool, Int64
from ..core.units import parse_seconds

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
