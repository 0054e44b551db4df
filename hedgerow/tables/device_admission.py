"""Admission on a device: which absent ids of a call may have a row. Nothing waits for it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.errors import DtypeError
from ..core.fids import slot_of
from ..core.shapes import Bool, Float64, Int64
from ..kernels.draws import draws
from ..kernels.layout import Grouped
from .admission import Question, check_reachable
from .config import TableConfig
from .device_filter import DeviceFilter
from .expiry import SLOTS

_NEVER = 2**62


@dataclass(frozen=True, slots=True, eq=False)
class Sightings:
    """The occurrences of the ids of one call, sorted so that equal ids are neighbours, a group."""

    ids: Int64[Tensor, "n"]
    start: Int64[Tensor, "n"]  # where its group begins
    number: Int64[Tensor, "n"]  # its place in its group, from 0
    live: Bool[Tensor, "n"]  # False: room behind the keys
    occurrences: Int64[Tensor, "n"]  # how many occurrences it stands for

    @staticmethod
    def of(
        grouped: Grouped, used: Int64[Tensor, "1"] | None, counts: Int64[Tensor, "n"] | None
    ) -> Sightings:
        """The sightings of grouped ids, without waiting for the device."""
        ids, order = grouped.ids, grouped.order
        at = torch.arange(len(ids), device=ids.device)
        order = at if order is None else order
        begins = torch.ones_like(ids, dtype=torch.bool)
        begins[1:] = ids[1:] != ids[:-1]
        start = torch.where(begins, at, 0).cummax(0).values if len(ids) else at
        live = order < (len(ids) if used is None else used)
        occurrences = live.long()
        if counts is not None:
            occurrences *= counts[order.clamp(max=max(len(counts) - 1, 0))]
        return Sightings(ids, start, at - start, live, occurrences)

    def total(self, of: Int64[Tensor, "n"]) -> Int64[Tensor, "n"]:
        """The sum over each group, at the group's first position; 0 at the others."""
        return torch.zeros_like(of).scatter_add_(0, self.start, of)

    def first(self, good: Bool[Tensor, "n"]) -> Int64[Tensor, "n"]:
        """The number of the first `good` occurrence of each group, at its first position.

        `_NEVER` at the other positions, and for groups without a good occurrence.
        """
        numbers = torch.where(good & self.live, self.number, _NEVER)
        never = torch.full_like(numbers, _NEVER)
        return never.scatter_reduce_(0, self.start, numbers, "amin")


class DeviceAdmission:
    """Asks the admission rule of one table which ids may have a row.

    All occurrences of an id in a call are one question, or each occurrence is one.
    """

    def __init__(
        self,
        question: Question,
        *,
        table: str,
        seed: int,
        filter: DeviceFilter | None,
        device: torch.device,
    ) -> None:
        self._question, self._table, self._seed, self._filter = question, table, seed, filter
        if filter is not None:
            check_reachable(table, question, filter.max_count)
        self._parameters = torch.full((1,), float(question.parameter), dtype=torch.float64)
        if question.slots:
            self._parameters = self._parameters.repeat(SLOTS)
            for slot, value in question.slots:
                self._parameters[slot] = float(value)
        self._parameters = self._parameters.to(device)

    def refused(
        self, seen: Sightings, absent: Bool[Tensor, "n"], step: int, *, each: bool
    ) -> Bool[Tensor, "n"]:
        """Which occurrences are refused.

        With `each`, every occurrence is a question of its own until one of them is admitted.
        """
        size = seen.total(seen.live.long())  # of each group, at its first position
        asked = absent & (size > 0)
        parameter = self._parameter(seen.ids)
        if self._question.form == "count":
            first = self._by_count(seen, asked & (parameter > 0), parameter, each)
        else:
            first = self._by_chance(seen, parameter, step, each)
        refused = torch.where(asked & (parameter > 0), first.minimum(size), 0)
        return seen.live & (seen.number < refused[seen.start])

    def _parameter(self, ids: Tensor) -> Float64[Tensor, "n"]:
        if len(self._parameters) == 1:
            return self._parameters.expand(len(ids))
        return self._parameters[slot_of(ids)]

    def _by_count(self, seen: Sightings, asked: Tensor, threshold: Tensor, each: bool) -> Tensor:
        """The number of the first occurrence that is admitted, at each group's first position."""
        if self._filter is None:
            raise AssertionError("a counting rule has a filter")
        before = self._filter.counts(seen.ids, asked, table=self._table)
        if not each:
            first = torch.where(before >= threshold, 0, _NEVER)
            added = seen.total(seen.occurrences)
        else:
            upto = seen.occurrences.cumsum(0)
            earlier = upto - seen.occurrences
            earlier = earlier - earlier[seen.start]
            counted = (before[seen.start] + earlier).clamp(max=self._filter.max_count)
            first = seen.first(counted >= threshold)
            last = first.minimum(seen.total(seen.live.long()) - 1).clamp(min=0)
            asked_to = (seen.start + last).clamp(max=len(last) - 1)
            added = (earlier + seen.occurrences)[asked_to]
        stored = self._filter.add(seen.ids, asked, table=self._table, counts=added)
        passes = asked & ~stored & (self._filter.max_count >= threshold)
        first = torch.where(asked & ~stored, _NEVER, first)
        return torch.where(passes, 0, first)  # one that found no cell counts as seen often

    def _by_chance(self, seen: Sightings, parameter: Tensor, step: int, each: bool) -> Tensor:
        asked = seen.occurrences if each else seen.total(seen.occurrences)
        chance = _probability(self._question.form, parameter, asked)
        good = draws(seen.ids, seen.number, self._seed, step).double() < chance
        return seen.first(good) if each else torch.where(good, 0, _NEVER)


def filter_of(
    config: TableConfig, given: DeviceFilter | None, slot_key: int, device: torch.device
) -> DeviceFilter | None:
    """The filter of a table: the `given` one, or a new one if the admission rule counts ids."""
    if given is not None and not isinstance(given, DeviceFilter):
        raise DtypeError(f"filter is {given!r}; pass a DeviceFilter, as another table's filter.")
    question = None if config.admit is None else config.admit.question()
    if given is not None or question is None or question.form != "count":
        return given
    assert config.admit is not None
    settings = config.admit.filter_settings()
    return DeviceFilter(seed=config.row_seed, device=device, slot_key=slot_key, **settings)


def admission_of(
    config: TableConfig, filter: DeviceFilter | None, device: torch.device
) -> DeviceAdmission | None:
    """What asks the admission rule of a table; None if it admits every id."""
    question = None if config.admit is None else config.admit.question()
    if question is None:
        return None
    return DeviceAdmission(
        question, table=config.name, seed=config.row_seed, filter=filter, device=device
    )


def _probability(form: str, parameter: Tensor, occurrences: Tensor) -> Float64[Tensor, "n"]:
    """As the core's `admission_probability`."""
    n = occurrences.double()
    if form == "each":
        return 1 - (1 - parameter) ** n
    share = n / torch.where(parameter > 0, parameter, 1.0)
    chance = share.clamp(max=1.0) if form == "unequal" else 1 - 0.05**share
    return torch.where(parameter > 0, chance, 1.0)
