"""Admission rules: which absent ids a write may give a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .. import native
from ..core import checks
from ..core.errors import ConfigError
from ..core.records import Record
from .filters import MAX_COUNT, SPLIT_NUM, SlidingFilter, check_sizes, table_key


@dataclass(frozen=True, slots=True)
class Question:
    """What a rule asks about an absent id, wherever rows live; its answer has one `form`.

    "count": was it counted `parameter` times before. "each", "unequal" and "equal": a draw, with
    `parameter` as `native.admission_probability` takes it. `slots` are parameters of slots.
    """

    form: str
    parameter: float
    slots: tuple[tuple[int, float], ...] = ()
    may_never_pass: bool = False  # a count may stop below the parameter


class Admission(Record):
    """Base of every admission rule."""

    needs_step: ClassVar[bool] = False  # decisions depend on the step

    def question(self) -> Question | None:
        """What is asked about absent ids; None lets everything in."""
        raise NotImplementedError

    def filter_settings(self) -> dict[str, int]:
        """Settings of the filter that a table makes if it was given none, without the seed."""
        return {}

    def own_filter(self, seed: int, slot_key: int | None = None) -> SlidingFilter | None:
        """The filter that a table makes if it was given none; None where nothing is counted."""
        asked = self.question()
        if asked is None or asked.form != "count":
            return None
        return SlidingFilter(seed=seed, slot_key=slot_key, **self.filter_settings())

    def rule(
        self, *, table: str, seed: int, filter: SlidingFilter | None
    ) -> native.Admission | None:
        """The core's rule for a table; None lets everything in."""
        asked = self.question()
        if asked is None:
            return None
        slots = [(slot, float(value)) for slot, value in asked.slots]
        if asked.form != "count":
            return native.ChanceAdmission(asked.form, seed, float(asked.parameter), slots)
        if filter is None:
            raise ConfigError(f"table {table!r} counts ids; give it a filter.")
        check_reachable(table, asked, filter.max_count)
        return native.CountAdmission(filter.core, table_key(table), float(asked.parameter), slots)


@dataclass(frozen=True)
class Count(Admission):
    """Admits an id on its `n`-th sighting; `Count(1)` admits every id.

    Sightings are counted by occurrence, over about the last 300 million distinct ids. All sightings
    of an id in one call are one question, answered by its count before the call: an id that comes
    five times in its first call has five sightings, and gets its row with the next call. Where a
    call takes occurrences one by one (`per_occurrence=True`), each is a question of its own.

    >>> Count(3).n
    3
    """

    kind = "count"
    n: int

    def __post_init__(self) -> None:
        _check_sightings("Count", self.n)

    def question(self) -> Question | None:
        """By the count before."""
        return Question("count", self.n - 1) if self.n > 1 else None


@dataclass(frozen=True)
class Within(Admission):
    """Admits an id on its `n`-th sighting among about the last `window_ids` distinct ids.

    >>> Within(1_000_000, 3).window_ids
    1000000
    """

    kind = "within"
    window_ids: int
    n: int

    def __post_init__(self) -> None:
        checks.whole("Within", "window_ids", self.window_ids, least=300)
        check_sizes("Within", self.window_ids, SPLIT_NUM)
        _check_sightings("Within", self.n)

    def question(self) -> Question | None:
        """By the count before."""
        return Question("count", self.n - 1) if self.n > 1 else None

    def filter_settings(self) -> dict[str, int]:
        """Of the window's size."""
        return {"capacity_ids": self.window_ids}


@dataclass(frozen=True)
class Chance(Admission):
    """Admits an absent id with probability `p` at every sighting. Takes no memory.

    The draw follows from the table's seed, the id and the step, so `apply_gradients` needs `step=`;
    `assign` and `assign_add` take `ts` for it. An id asked twice at one step gets one answer.

    >>> Chance(0.25).p
    0.25
    """

    kind = "chance"
    needs_step = True
    p: float

    def __post_init__(self) -> None:
        checks.setting("Chance", "p", self.p, above=0)
        if self.p > 1:
            raise ConfigError(f"Chance.p is {self.p!r}; a probability is at most 1.")

    def question(self) -> Question | None:
        """By a draw for every occurrence."""
        return Question("each", self.p) if self.p < 1 else None


def check_reachable(table: str, asked: Question, max_count: int) -> None:
    """Refuses a threshold that the counts of a filter never reach."""
    largest = max([asked.parameter, *(value for _, value in asked.slots)])
    if largest > max_count and not asked.may_never_pass:
        raise ConfigError(
            f"table {table!r} admits after {int(largest)} occurrences, but the counts of its "
            f"filter stop at {max_count}: no id would ever pass. Use a filter with larger counts."
        )


def _check_sightings(owner: str, n: int) -> None:
    checks.whole(owner, "n", n, least=1)
    if n > MAX_COUNT + 1:
        raise ConfigError(
            f"{owner}.n is {n}; counts have 8 bits, so an id can be admitted on its "
            f"{MAX_COUNT + 1}th sighting at the latest."
        )
