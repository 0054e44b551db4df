"""Pools the vectors of a batch into dense tensors, all features and slices in one launch.

A program works on a unit: one position of one slice of an output, for a block of rows. The numbers
of a call (requests, and offsets of vector lists and outputs) are one small tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.shapes import Int64
from .toolchain import columns_of, jit, tl

_TASK_WIDTH = 5  # index of the width in a task
_PLACES = slice(4, 9)  # indices of start, width, strides and column
_MOST_COLUMNS = 128
_TILE = 1024  # values per block


def _are_fours(numbers: Sequence[int]) -> bool:
    return not any(number % 4 for number in numbers)


@dataclass(frozen=True, slots=True, eq=False)
class LayoutTaskTensors:
    """The tasks of a configuration on a device. Tasks of the same output are adjacent."""

    tasks: Int64[Tensor, "tasks 10"]
    units: Int64[Tensor, "units 3"]
    columns: int  # per block
    fours: bool  # whether all slices begin and end at multiples of 4 values

    @staticmethod
    def of(cells: Sequence[Sequence[Sequence[int]]], device: torch.device) -> LayoutTaskTensors:
        """Builds the tensors from tasks by cell.

        The tasks of a cell write the same values, in order.
        """
        tasks, units = [], []
        for cell in cells:
            first, length = len(tasks), cell[0][3]
            tasks += [list(task) for task in cell]
            units += [[first, len(tasks), position] for position in range(length)]
        widest = max((task[_TASK_WIDTH] for task in tasks), default=1)
        return LayoutTaskTensors(
            torch.tensor(tasks, dtype=torch.int64).view(-1, 10).to(device),
            torch.tensor(units, dtype=torch.int64).view(-1, 3).to(device),
            min(_MOST_COLUMNS, columns_of(widest)),
            _are_fours([number for task in tasks for number in task[_PLACES]]),
        )

    @property
    def rows(self) -> int:
        """Rows per block."""
        return max(4, min(64, _TILE // self.columns))


@dataclass(frozen=True, slots=True, eq=False)
class LayoutCall:
    """The index tensors of a call, and its numbers: requests, then lists, then outputs."""

    fids: Int64[Tensor, "ids"]
    offsets: Tensor  # int32 or int64 [entries + 1]
    nfl: Int64[Tensor, "features + 1"]
    numbers: Int64[Tensor, "any"]
    requests: int
    lists: int  # per request
    most_rows: int  # per request
    fours: bool  # whether all lists and outputs begin at multiples of 4 values

    @staticmethod
    def of(
        index: tuple[Tensor, Tensor, Tensor],
        requests: Sequence[Sequence[int]],
        lists: Sequence[tuple[int, int]],
        outputs: Sequence[int],
    ) -> LayoutCall:
        """Builds a call.

        `lists` are offsets and lengths, request by request; `outputs` are offsets.

        The copy of the numbers to the device does not block.
        """
        flat = [n for one in requests for n in one] + [n for one in lists for n in one]
        numbers = torch.tensor([*flat, *outputs], dtype=torch.int64)
        return LayoutCall(
            *index,
            numbers.to(index[0].device, non_blocking=True),
            len(requests),
            len(lists) // max(1, len(requests)),
            max((one[6] for one in requests), default=0),
            _are_fours([*(begin for begin, _ in lists), *outputs]),
        )


TASK = tl.constexpr(10)  # numbers of a task, in the order of `Task`
REQUEST = tl.constexpr(7)  # of a request, in the order of `LayoutRequest`
UNIT = tl.constexpr(3)  # first task, end, position
MEAN, FIRSTN = tl.constexpr(1), tl.constexpr(3)
SHARED_BIT = tl.constexpr(31)
AHEAD = 2  # ids of an entry whose loads are in flight together


@jit
def _entries(
    numbers: tl.tensor,
    task: tl.tensor,
    offsets: tl.tensor,
    nfl: tl.tensor,
    row: tl.tensor,
    position: tl.tensor,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Returns each row's first id, end and id count, and whether the rows share one entry."""
    request = numbers + tl.program_id(2) * REQUEST
    words = nfl + tl.load(request) + tl.load(task)
    entries, rows = tl.load(request + 2), tl.load(request + 6)
    word = tl.load(words)
    begin = tl.minimum(word & 0x7FFFFFFF, entries)
    end = tl.minimum(tl.load(words + 1) & 0x7FFFFFFF, entries)
    shared = (word >> SHARED_BIT) & 1
    entry = begin + tl.where(shared > 0, 0, row)
    there = (row < rows) & (entry < end)
    at = offsets + tl.load(request + 1) + entry
    first = tl.load(at, mask=there, other=0).to(tl.int64)
    stop = tl.load(at + 1, mask=there, other=0).to(tl.int64)
    count = stop - first
    alone = tl.load(task + 2) == FIRSTN
    first += tl.where(alone, position, 0)
    stop = tl.where(alone, tl.minimum(stop, first + 1), stop)
    return first, stop, count, shared


@jit
def _vectors(
    numbers: tl.tensor,
    fids: tl.tensor,
    at: tl.tensor,
    more: tl.tensor,
    start: tl.tensor,
    width: tl.tensor,
    requests: tl.tensor,
    lists: tl.tensor,
) -> tuple[tl.tensor, tl.tensor]:
    """Returns the offsets of the ids' slices, and which of them are valid."""
    request = numbers + tl.program_id(2) * REQUEST
    inside = more & (at < tl.load(request + 4))
    word = tl.load(fids + tl.load(request + 3) + at, mask=inside, other=-1)
    which = word >> 32
    known = inside & (which >= 0) & (which < lists)
    place = numbers + requests * REQUEST + (tl.program_id(2) * lists + which) * 2
    base = tl.load(place, mask=known, other=0)
    length = tl.load(place + 1, mask=known, other=0)
    value = (word & 0xFFFFFFFF) + start
    return base + value, known & (value + width <= length)


@jit
def _output(
    numbers: tl.tensor,
    task: tl.tensor,
    row: tl.tensor,
    position: tl.tensor,
    requests: tl.tensor,
    lists: tl.tensor,
) -> tl.tensor:
    """Returns the offset of a unit's rows in its output."""
    begin = tl.load(numbers + tl.program_id(2) * REQUEST + 5)
    outputs = numbers + requests * REQUEST + requests * lists * 2
    base = tl.load(outputs + tl.load(task + 1))
    column = tl.load(task + 7) + position * tl.load(task + 8)
    return base + (begin + row) * tl.load(task + 6) + column


@jit
def _shared_out(values: tl.tensor, count: tl.tensor, SUM: tl.constexpr) -> tl.tensor:
    """Returns values divided by the number of ids of each entry, rounded to nearest."""
    shares = tl.zeros_like(values) + tl.maximum(count, 1).to(SUM)[:, None]
    if tl.float64 == SUM:
        return values / shares
    else:  # noqa: RET505 (Triton wants both arms)
        return tl.div_rn(values, shares)


@jit
def _at(begin: tl.tensor, column: tl.tensor, FOURS: tl.constexpr) -> tl.tensor:
    """Returns the offsets of the columns from each begin, as multiples of 4 with FOURS."""
    if FOURS:
        return ((begin >> 2) * 4)[:, None] + column
    else:  # noqa: RET505 (Triton wants both arms)
        return begin[:, None] + column


@jit
def _width(task: tl.tensor, FOURS: tl.constexpr) -> tl.tensor:
    width = tl.load(task + 5)
    if FOURS:
        width = (width >> 2) * 4
    return width


@jit
def _forward(
    values: tl.tensor,
    out: tl.tensor,
    numbers: tl.tensor,
    tasks: tl.tensor,
    units: tl.tensor,
    fids: tl.tensor,
    offsets: tl.tensor,
    nfl: tl.tensor,
    requests: tl.tensor,
    lists: tl.tensor,
    SUM: tl.constexpr,
    FOURS: tl.constexpr,
    AHEAD: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    unit = units + tl.program_id(1) * UNIT
    begin, end, position = tl.load(unit), tl.load(unit + 1), tl.load(unit + 2)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = row < tl.load(numbers + tl.program_id(2) * REQUEST + 6)
    width = _width(tasks + begin * TASK, FOURS)
    left = tl.full((), 0, tl.int64)
    while left < width:
        column = left + tl.arange(0, COLUMNS)[None, :]
        total = tl.zeros((ROWS, COLUMNS), SUM)
        t = begin
        while t < end:
            task = tasks + t * TASK
            first, stop, count, _shared = _entries(numbers, task, offsets, nfl, row, position)
            start = tl.load(task + 4)
            pooled = tl.zeros((ROWS, COLUMNS), SUM)
            longest = tl.max(stop - first, axis=0)
            j = tl.full((), 0, tl.int64)
            while j < longest:
                for _ in tl.static_range(AHEAD):
                    more = first + j < stop
                    place, known = _vectors(
                        numbers, fids, first + j, more, start, width, requests, lists
                    )
                    there = known[:, None] & (column < width)
                    value = tl.load(values + _at(place, column, FOURS), mask=there, other=0.0)
                    pooled = tl.where(there, pooled + value.to(SUM), pooled)
                    j += 1
            if tl.load(task + 2) == MEAN:
                pooled = _shared_out(pooled, count, SUM)
            total += pooled
            t += 1
        place = _output(numbers, tasks + begin * TASK, row, position, requests, lists)
        target = out + _at(place, column, FOURS)
        tl.store(target, total, mask=here[:, None] & (column < width))
        left += COLUMNS


@jit(do_not_specialize=["requests", "lists"])
def _to_layout(
    values: tl.tensor,
    out: tl.tensor,
    odd: tl.tensor,
    numbers: tl.tensor,
    tasks: tl.tensor,
    units: tl.tensor,
    fids: tl.tensor,
    offsets: tl.tensor,
    nfl: tl.tensor,
    requests: tl.tensor,
    lists: tl.tensor,
    SUM: tl.constexpr,
    FOURS: tl.constexpr,
    AHEAD: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    fours = tl.load(odd) == 0 if FOURS else False
    if fours:
        _forward(
            *(values, out, numbers, tasks, units, fids, offsets, nfl, requests, lists),
            *(SUM, FOURS, AHEAD, ROWS, COLUMNS),
        )
    else:
        _forward(
            *(values, out, numbers, tasks, units, fids, offsets, nfl, requests, lists),
            *(SUM, False, AHEAD, ROWS, COLUMNS),
        )


@jit
def _backward(
    grads: tl.tensor,
    sums: tl.tensor,
    numbers: tl.tensor,
    tasks: tl.tensor,
    units: tl.tensor,
    fids: tl.tensor,
    offsets: tl.tensor,
    nfl: tl.tensor,
    scale: tl.tensor,
    requests: tl.tensor,
    lists: tl.tensor,
    SUM: tl.constexpr,
    FOURS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    unit = units + tl.program_id(1) * UNIT
    begin, end, position = tl.load(unit), tl.load(unit + 1), tl.load(unit + 2)
    lane = tl.arange(0, ROWS)
    row = tl.program_id(0).to(tl.int64) * ROWS + lane
    here = row < tl.load(numbers + tl.program_id(2) * REQUEST + 6)
    width = _width(tasks + begin * TASK, FOURS)
    factor = tl.load(scale)
    left = tl.full((), 0, tl.int64)
    while left < width:
        column = left + tl.arange(0, COLUMNS)[None, :]
        place = _output(numbers, tasks + begin * TASK, row, position, requests, lists)
        mask = here[:, None] & (column < width)
        given = tl.load(grads + _at(place, column, FOURS), mask=mask, other=0.0).to(SUM) * factor
        t = begin
        while t < end:
            task = tasks + t * TASK
            first, stop, count, shared = _entries(numbers, task, offsets, nfl, row, position)
            # Rows that share an entry are summed here, and one of them adds the sum to its ids.
            grad = given
            if shared > 0:
                grad = tl.zeros_like(given) + tl.sum(given, axis=0)[None, :]
            brings = (shared == 0) | (lane == 0)
            if tl.load(task + 2) == MEAN:
                grad = _shared_out(grad, count, SUM)
            start = tl.load(task + 4)
            longest = tl.max(stop - first, axis=0)
            j = tl.full((), 0, tl.int64)
            while j < longest:
                more = brings & (first + j < stop)
                at, known = _vectors(numbers, fids, first + j, more, start, width, requests, lists)
                there = known[:, None] & (column < width)
                tl.atomic_add(sums + _at(at, column, FOURS), grad, mask=there, sem="relaxed")
                j += 1
            t += 1
        left += COLUMNS


@jit(do_not_specialize=["requests", "lists"])
def _to_layout_backward(
    grads: tl.tensor,
    sums: tl.tensor,
    odd: tl.tensor,
    numbers: tl.tensor,
    tasks: tl.tensor,
    units: tl.tensor,
    fids: tl.tensor,
    offsets: tl.tensor,
    nfl: tl.tensor,
    scale: tl.tensor,
    requests: tl.tensor,
    lists: tl.tensor,
    SUM: tl.constexpr,
    FOURS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    fours = tl.load(odd) == 0 if FOURS else False
    if fours:
        _backward(
            *(grads, sums, numbers, tasks, units, fids, offsets, nfl, scale, requests, lists),
            *(SUM, FOURS, ROWS, COLUMNS),
        )
    else:
        _backward(
            *(grads, sums, numbers, tasks, units, fids, offsets, nfl, scale, requests, lists),
            *(SUM, False, ROWS, COLUMNS),
        )


def _settings(work: LayoutTaskTensors, call: LayoutCall, dtype: torch.dtype) -> dict[str, Any]:
    return {
        "SUM": tl.float64 if dtype == torch.float64 else tl.float32,
        "FOURS": work.fours and call.fours,
        "ROWS": work.rows,
        "COLUMNS": work.columns,
        "enable_fp_fusion": False,
    }


def _grid(work: LayoutTaskTensors, call: LayoutCall) -> tuple[int, int, int]:
    return -(-call.most_rows // work.rows), len(work.units), call.requests


def _odd(call: LayoutCall, settings: dict[str, Any]) -> Tensor:
    """Returns whether a word is not a multiple of 4.

    Then vectors cannot move 16 bytes at a time.
    """
    return (call.fids & 3).any().view(1).int() if settings["FOURS"] else call.numbers


def to_layout(work: LayoutTaskTensors, call: LayoutCall, values: Tensor, out: Tensor) -> None:
    """Fills all outputs. Halves are summed in float32. Invalid words count as zeros.

    Lists and outputs of the call are offsets into `values` and `out`.
    """
    grid = _grid(work, call)
    if min(grid) > 0:
        settings = _settings(work, call, values.dtype)
        _to_layout[grid](
            *(values, out, _odd(call, settings), call.numbers, work.tasks, work.units),
            *(call.fids, call.offsets, call.nfl, call.requests, call.lists),
            **settings,
            AHEAD=AHEAD,
        )


def to_layout_backward(
    work: LayoutTaskTensors, call: LayoutCall, grads: Tensor, sums: Tensor, scale: Tensor
) -> None:
    """Adds the gradients of outputs to those of the lists, in no fixed order.

    Outputs are offsets into `grads`, lists offsets into `sums`. `sums` must hold zeros of float32
    or float64. `scale` must be on the device and have the same dtype.
    """
    grid = _grid(work, call)
    if min(grid) > 0:
        settings = _settings(work, call, sums.dtype)
        _to_layout_backward[grid](
            *(grads, sums, _odd(call, settings), call.numbers, work.tasks, work.units),
            *(call.fids, call.offsets, call.nfl, scale, call.requests, call.lists),
            **settings,
        )
