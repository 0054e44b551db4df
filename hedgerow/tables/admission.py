"""Admission rules, which decide what absent ids get a row, and the filter that counts ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .. import native
from ..core import checks
from ..core.errors import ConfigError, InputError
from ..core.hashing import id64
from ..core.records import Record
from ..core.shapes import Int64, UInt8
from . import arguments
from .slot_key import check_slot_key, slot_key_of

CAPACITY_IDS, SPLIT_NUM = 300_000_000, 7  # as in Monolith
MAX_COUNT = 255  # a cell has 8 bits for the count


@dataclass(frozen=True)
class FilterMeta(Record):
    """Describes a filter's state and the format of its arrays; can be written as JSON.

    >>> SlidingFilter(capacity_ids=600).dump().meta.head_increment
    0
    """

    kind = "sliding_filter"
    capacity_ids: int
    split_num: int
    seed: int
    max_count: int
    head: int
    head_increment: int
    failures: int
    arrays: tuple[tuple[int, int, int], ...]  # bytes per cell, cells, ids
    slot_key: int = 0  # determines the cells of ids; 0 gives those of release 0.1

    def settings(self) -> dict[str, int]:
        """Returns the settings that must be equal in two filters that exchange their states."""
        names = ("capacity_ids", "split_num", "seed", "max_count")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, eq=False)
class FilterState:
    """The whole state of a filter at one moment."""

    meta: FilterMeta
    arrays: tuple[UInt8[Tensor, "bytes"], ...]


class SlidingFilter:
    """Counts ids over about the last `capacity_ids` distinct ids. Thread-safe: it owns a lock.

    Tables that share a filter count their ids separately. Memory grows with the number of ids seen,
    up to about 5 bytes per id of the capacity. An id that finds no cell counts as seen often
    enough, and `failures` increases. Counts stop at `max_count`. The `slot_key` determines in which
    cells ids are counted. It is drawn at random unless given, and is part of the state.

    >>> seen = SlidingFilter(capacity_ids=1000)
    >>> seen.add(torch.tensor([7, 7, 8]), table="user").tolist()
    [0, 1, 0]
    >>> seen.counts(torch.tensor([7, 8, 9]), table="user").tolist()
    [2, 1, 0]
    """

    def __init__(
        self,
        *,
        capacity_ids: int = CAPACITY_IDS,
        split_num: int = SPLIT_NUM,
        seed: int = 0,
        max_count: int = MAX_COUNT,
        slot_key: int | None = None,
    ) -> None:
        check_sizes("SlidingFilter", capacity_ids, split_num)
        checks.whole("SlidingFilter", "max_count", max_count, least=1)
        if max_count > MAX_COUNT:
            raise ConfigError(
                f"SlidingFilter.max_count is {max_count}; counts have 8 bits: at most {MAX_COUNT}."
            )
        if not (type(seed) is int and 0 <= seed < 2**64):
            raise ConfigError(f"SlidingFilter.seed is {seed!r}; it must be an int in 0..2**64-1.")
        check_slot_key("SlidingFilter", slot_key)
        self.capacity_ids, self.split_num = capacity_ids, split_num
        self.seed, self.max_count = seed, max_count
        self.tables: set[str] = set()  # names of the tables that count their ids here
        self.core = native.SlidingFilter(
            capacity_ids, split_num, seed, max_count, slot_key_of(slot_key)
        )

    def __repr__(self) -> str:
        return (
            f"SlidingFilter(capacity_ids={self.capacity_ids}, split_num={self.split_num}, "
            f"seed={self.seed}, max_count={self.max_count})"
        )

    def add(
        self, ids: Int64[Tensor, "n"], *, table: str, counts: Int64[Tensor, "n"] | None = None
    ) -> UInt8[Tensor, "n"]:
        """Counts ids in order, each once or `counts` times; returns their counts before."""
        checks.tensor("ids", ids, torch.int64, (None,))
        arguments.occurrences(counts, len(ids))
        before = torch.empty(len(ids), dtype=torch.uint8)
        counts_at = 0 if counts is None else counts.data_ptr()
        self.core.add_many(table_key(table), ids.data_ptr(), counts_at, len(ids), before.data_ptr())
        return before

    def counts(self, ids: Int64[Tensor, "n"], *, table: str) -> UInt8[Tensor, "n"]:
        """Returns the counts of ids. Counts nothing."""
        checks.tensor("ids", ids, torch.int64, (None,))
        out = torch.empty(len(ids), dtype=torch.uint8)
        self.core.count_many(table_key(table), ids.data_ptr(), len(ids), out.data_ptr())
        return out

    def meta(self) -> FilterMeta:
        """Returns the description of the state, without its arrays."""
        return self._meta(self.core.dump(0, 0))

    @property
    def head(self) -> int:
        """The number of the array that takes new ids."""
        return self.meta().head

    @property
    def head_increment(self) -> int:
        """How often the head advanced."""
        return self.meta().head_increment

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of ids in each array."""
        return tuple(size for _, _, size in self.meta().arrays)

    @property
    def failures(self) -> int:
        """The number of ids that found no cell."""
        return self.meta().failures

    def memory_bytes(self) -> int:
        """Returns the bytes of all arrays."""
        return self.core.memory()

    def clear(self) -> None:
        """Forgets all ids of all tables and frees the memory of their counts."""
        unused = [(0, 0, 0)] * self.split_num
        self.core.restore(self.meta().slot_key, 0, 0, 0, unused, 0, 0)

    def dump(self) -> FilterState:
        """Returns the whole state at one moment, also while other threads count.

        >>> seen, other = SlidingFilter(capacity_ids=600), SlidingFilter(capacity_ids=600)
        >>> _ = seen.add(torch.tensor([7]), table="user")
        >>> other.restore(seen.dump())
        >>> other.counts(torch.tensor([7]), table="user").tolist()
        [1]
        """
        raw = torch.empty(0, dtype=torch.uint8)
        while True:
            meta = self._meta(self.core.dump(len(raw), raw.data_ptr()))
            sizes = [cell_bytes * cells for cell_bytes, cells, _ in meta.arrays]
            if sum(sizes) <= len(raw):
                return FilterState(meta, raw[: sum(sizes)].split(sizes))
            raw = torch.empty(sum(sizes), dtype=torch.uint8)

    def restore(self, state: FilterState) -> None:
        """Restores a state that a filter with equal settings dumped.

        A damaged state changes nothing.
        """
        mine, given = self.meta().settings(), state.meta.settings()
        differ = [f"{n} {given[n]}, not {mine[n]}" for n in mine if given[n] != mine[n]]
        if differ:
            raise InputError(
                f"the state is of another filter: {'; '.join(differ)}. Counts cannot be carried "
                f"over; make the filter with the state's settings, or start with empty counts."
            )
        for i, array in enumerate(state.arrays):
            checks.tensor(f"arrays[{i}]", array, torch.uint8, (None,))
        raw = torch.cat([torch.empty(0, dtype=torch.uint8), *state.arrays])
        meta = state.meta
        arrays = [(cell_bytes, cells, size) for cell_bytes, cells, size in meta.arrays]
        try:
            self.core.restore(
                *(meta.slot_key, meta.head, meta.head_increment, meta.failures, arrays),
                *(raw.data_ptr(), len(raw)),
            )
        except ValueError as error:
            raise InputError(f"{error}: the state is damaged; take another checkpoint.") from error

    def _meta(self, dumped: tuple[int, int, int, int, list[tuple[int, int, int]]]) -> FilterMeta:
        slot_key, head, head_increment, failures, arrays = dumped
        mine = (self.capacity_ids, self.split_num, self.seed, self.max_count)
        return FilterMeta(*mine, head, head_increment, failures, tuple(arrays), slot_key)


def check_sizes(owner: str, capacity_ids: int, split_num: int) -> None:
    """Raises if a filter cannot have these sizes; `owner` names the setting in the message.

    >>> check_sizes("Within", 1000, 7)
    """
    checks.whole(owner, "capacity_ids", capacity_ids, least=300)
    checks.whole(owner, "split_num", split_num, least=5)
    if capacity_ids > 2**40:
        raise ConfigError(f"{owner}.capacity_ids is {capacity_ids}; at most 2**40.")
    if capacity_ids // (split_num - 1) < 2:
        raise ConfigError(
            f"{owner}.split_num is {split_num}; a capacity of {capacity_ids} ids allows at most "
            f"{capacity_ids // 2 + 1}, so that an array holds two."
        )


def table_key(table: str) -> int:
    """Returns the number that keeps a table's ids apart in a shared filter.

    >>> table_key("user") == table_key("item")
    False
    """
    return id64(table, "admission filter") & (2**64 - 1)


@dataclass(frozen=True, slots=True)
class AdmissionQuestion:
    """What an admission rule checks for an absent id, on any device; `form` is the kind of check.

    With "count", an id passes if it was counted at least `parameter` times before. With "each",
    "unequal" and "equal", a random draw decides; `native.admission_probability` defines how
    `parameter` gives the probability. `slots` holds other parameters for single slots of ids.
    """

    form: str
    parameter: float
    slots: tuple[tuple[int, float], ...] = ()
    may_never_pass: bool = False  # the filter's counts may stop below the parameter


class AdmissionRule(Record):
    """Base of every admission rule."""

    needs_step: ClassVar[bool] = False  # decisions depend on the step

    def question(self) -> AdmissionQuestion | None:
        """Returns what is checked for absent ids; None admits every id."""
        raise NotImplementedError

    def filter_settings(self) -> dict[str, int]:
        """Returns the settings of the filter that a table makes by default, without the seed."""
        return {}

    def own_filter(self, seed: int, slot_key: int | None = None) -> SlidingFilter | None:
        """Returns the filter that a table makes by default; None if the rule counts nothing."""
        asked = self.question()
        if asked is None or asked.form != "count":
            return None
        return SlidingFilter(seed=seed, slot_key=slot_key, **self.filter_settings())

    def rule(
        self, *, table: str, seed: int, filter: SlidingFilter | None
    ) -> native.Admission | None:
        """Returns the core's rule for a table; None admits every id."""
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
class Count(AdmissionRule):
    """Admits an id on its `n`-th sighting; `Count(1)` admits every id.

    Every occurrence is a sighting; the count covers about the last 300 million distinct ids. The
    rule decides once per id of a call, by the count before the call. With `Count(3)`, an id that
    occurs five times in its first call is therefore admitted in the next call. With
    `per_occurrence=True`, the rule decides for each occurrence in order.

    >>> Count(3).n
    3
    """

    kind = "count"
    n: int

    def __post_init__(self) -> None:
        _check_sightings("Count", self.n)

    def question(self) -> AdmissionQuestion | None:
        """Returns a check of the count before the call."""
        return AdmissionQuestion("count", self.n - 1) if self.n > 1 else None


@dataclass(frozen=True)
class Within(AdmissionRule):
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

    def question(self) -> AdmissionQuestion | None:
        """Returns a check of the count before the call."""
        return AdmissionQuestion("count", self.n - 1) if self.n > 1 else None

    def filter_settings(self) -> dict[str, int]:
        """Returns a capacity of the window's size."""
        return {"capacity_ids": self.window_ids}


@dataclass(frozen=True)
class Chance(AdmissionRule):
    """Admits an absent id with probability `p` at every sighting. Takes no memory.

    The draw is determined by the table's seed, the id and the step, so `apply_gradients` needs
    `step=`; `assign` and `assign_add` use `ts` as the step. Equal ids at the same step get the same
    answer.

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

    def question(self) -> AdmissionQuestion | None:
        """Returns a check by one draw per occurrence."""
        return AdmissionQuestion("each", self.p) if self.p < 1 else None


def check_reachable(table: str, asked: AdmissionQuestion, max_count: int) -> None:
    """Raises if the counts of a filter can never reach the rule's threshold."""
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
