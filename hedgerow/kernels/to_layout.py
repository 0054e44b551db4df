"""Vectors of a batch's ids pooled into dense tensors, all features and slices in one launch.

What a program works on is a unit: one position of one slice of an output, for a block of rows. The
numbers of a call (requests, where lists of vectors and outputs lie) are one small tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.shapes import Int64
from .toolchain import columns_of, jit, tl

TASK = tl.constexpr(10)  # numbers of a task, in the order of `ops.layout.plan.Task`
REQUEST = tl.constexpr(7)  # of a request, in the order of `ops.layout.inputs.Request`
UNIT = tl.constexpr(3)  # first task, end, position
MEAN, FIRSTN = tl.constexpr(1), tl.constexpr(3)
SHARED_BIT = tl.constexpr(31)
_TASK_WIDTH = 5  # where a task has its width
_MOST_COLUMNS = 128


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """The tasks of a configuration on a device: tasks that add to one output side by side."""

    tasks: Int64[Tensor, "tasks 10"]
    units: Int64[Tensor, "units 3"]
    columns: int  # of a block

    @staticmethod
    def of(cells: Sequence[Sequence[Sequence[int]]], device: torch.device) -> Work:
        """From tasks by cell: those of a cell write the same values, in order."""
        tasks, units = [], []
        for cell in cells:
            first, length = len(tasks), cell[0][3]
            tasks += [list(task) for task in cell]
            units += [[first, len(tasks), position] for position in range(length)]
        widest = max((task[_TASK_WIDTH] for task in tasks), default=1)
        return Work(
            torch.tensor(tasks, dtype=torch.int64).view(-1, 10).to(device),
            torch.tensor(units, dtype=torch.int64).view(-1, 3).to(device),
            min(_MOST_COLUMNS, columns_of(widest)),
        )

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return max(4, min(64, 2048 // self.columns))


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """The index tensors of a call, and its numbers: requests, then lists, then outputs."""

    fids: Int64[Tensor, "ids"]
    offsets: Tensor  # int32 or int64 [entries + 1]
    nfl: Int64[Tensor, "features + 1"]
    numbers: Int64[Tensor, "any"]
    requests: int
    lists: int  # of a request
    most_rows: int  # of a request

    @staticmethod
    def of(
        index: tuple[Tensor, Tensor, Tensor],
        requests: Sequence[Sequence[int]],
        lists: Sequence[tuple[int, int]],
        outputs: Sequence[int],
    ) -> Call:
        """`lists` are addresses and lengths, request by request; `outputs` are addresses.

        The copy of the numbers is not waited for.
        """
        flat = [n for one in requests for n in one] + [n for one in lists for n in one]
        numbers = torch.tensor([*flat, *outputs], dtype=torch.int64)
        return Call(
            *index,
            numbers.to(index[0].device, non_blocking=True),
            len(requests),
            len(lists) // max(1, len(requests)),
            max((one[6] for one in requests), default=0),
        )


@jit
def _entries(
    numbers: tl.tensor,
    task: tl.tensor,
    offsets: tl.tensor,
    nfl: tl.tensor,
    row: tl.tensor,
    position: tl.tensor,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Of each row: the first of its ids that count, their end, all ids of its entry, and whether
    all rows share one entry."""
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
    BYTES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Addresses of the slices of the ids at these places, and which of them lead somewhere."""
    request = numbers + tl.program_id(2) * REQUEST
    inside = more & (at < tl.load(request + 4))
    word = tl.load(fids + tl.load(request + 3) + at, mask=inside, other=-1)
    which = word >> 32
    known = inside & (which >= 0) & (which < lists)
    place = numbers + requests * REQUEST + (tl.program_id(2) * lists + which) * 2
    base = tl.load(place, mask=known, other=0)
    length = tl.load(place + 1, mask=known, other=0)
    value = (word & 0xFFFFFFFF) + start
    return base + value * BYTES, known & (value + width <= length)


@jit
def _output(
    numbers: tl.tensor,
    task: tl.tensor,
    row: tl.tensor,
    position: tl.tensor,
    requests: tl.tensor,
    lists: tl.tensor,
    BYTES: tl.constexpr,
) -> tl.tensor:
    """Addresses of the first values of a unit's rows in its output."""
    begin = tl.load(numbers + tl.program_id(2) * REQUEST + 5)
    outputs = numbers + requests * REQUEST + requests * lists * 2
    base = tl.load(outputs + tl.load(task + 1))
    column = tl.load(task + 7) + position * tl.load(task + 8)
    return base + ((begin + row) * tl.load(task + 6) + column) * BYTES


@jit
def _shared_out(values: tl.tensor, count: tl.tensor, SUM: tl.constexpr) -> tl.tensor:
    """Divided by the ids of each entry, rounded to the nearest."""
    shares = tl.zeros_like(values) + tl.maximum(count, 1).to(SUM)[:, None]
    if tl.float64 == SUM:
        return values / shares
    else:  # noqa: RET505 (Triton wants both arms)
        return tl.div_rn(values, shares)


@jit(do_not_specialize=["requests", "lists"])
def _to_layout(
    numbers: tl.tensor,
    tasks: tl.tensor,
    units: tl.tensor,
    fids: tl.tensor,
    offsets: tl.tensor,
    nfl: tl.tensor,
    requests: tl.tensor,
    lists: tl.tensor,
    VALUE: tl.constexpr,
    SUM: tl.constexpr,
    BYTES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    unit = units + tl.program_id(1) * UNIT
    begin, end, position = tl.load(unit), tl.load(unit + 1), tl.load(unit + 2)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = row < tl.load(numbers + tl.program_id(2) * REQUEST + 6)
    width = tl.load(tasks + begin * TASK + 5)
    left = tl.full((), 0, tl.int64)
    while left < width:
        column = left + tl.arange(0, COLUMNS).to(tl.int64)[None, :]
        total = tl.zeros((ROWS, COLUMNS), SUM)
        t = begin
        while t < end:
            task = tasks + t * TASK
            first, stop, count, _ = _entries(numbers, task, offsets, nfl, row, position)
            start = tl.load(task + 4)
            pooled = tl.zeros((ROWS, COLUMNS), SUM)
            longest = tl.max(stop - first, axis=0)
            j = tl.full((), 0, tl.int64)
            while j < longest:
                place, known = _vectors(
                    numbers, fids, first + j, first + j < stop, start, width, requests, lists, BYTES
                )
                source = (place[:, None] + column * BYTES).to(tl.pointer_type(VALUE))
                there = known[:, None] & (column < width)
                value = tl.load(source, mask=there, other=0.0)
                pooled = tl.where(there, pooled + value.to(SUM), pooled)
                j += 1
            if tl.load(task + 2) == MEAN:
                pooled = _shared_out(pooled, count, SUM)
            total += pooled
            t += 1
        place = _output(numbers, tasks + begin * TASK, row, position, requests, lists, BYTES)
        target = (place[:, None] + column * BYTES).to(tl.pointer_type(VALUE))
        tl.store(target, total.to(VALUE), mask=here[:, None] & (column < width))
        left += COLUMNS


@jit(do_not_specialize=["requests", "lists"])
def _to_layout_backward(
    numbers: tl.tensor,
    tasks: tl.tensor,
    units: tl.tensor,
    fids: tl.tensor,
    offsets: tl.tensor,
    nfl: tl.tensor,
    scale: tl.tensor,
    requests: tl.tensor,
    lists: tl.tensor,
    VALUE: tl.constexpr,
    SUM: tl.constexpr,
    BYTES: tl.constexpr,
    SUM_BYTES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    unit = units + tl.program_id(1) * UNIT
    begin, end, position = tl.load(unit), tl.load(unit + 1), tl.load(unit + 2)
    lane = tl.arange(0, ROWS)
    row = tl.program_id(0).to(tl.int64) * ROWS + lane
    here = row < tl.load(numbers + tl.program_id(2) * REQUEST + 6)
    width = tl.load(tasks + begin * TASK + 5)
    factor = tl.load(scale)
    left = tl.full((), 0, tl.int64)
    while left < width:
        column = left + tl.arange(0, COLUMNS).to(tl.int64)[None, :]
        place = _output(numbers, tasks + begin * TASK, row, position, requests, lists, BYTES)
        source = (place[:, None] + column * BYTES).to(tl.pointer_type(VALUE))
        given = tl.load(source, mask=here[:, None] & (column < width), other=0.0).to(SUM) * factor
        t = begin
        while t < end:
            task = tasks + t * TASK
            first, stop, count, shared = _entries(numbers, task, offsets, nfl, row, position)
            # Rows that share an entry are added up here: one of them brings the sum to its ids.
            grad = tl.where(shared > 0, tl.sum(given, axis=0)[None, :], given)
            brings = (shared == 0) | (lane == 0)
            if tl.load(task + 2) == MEAN:
                grad = _shared_out(grad, count, SUM)
            start = tl.load(task + 4)
            longest = tl.max(stop - first, axis=0)
            j = tl.full((), 0, tl.int64)
            while j < longest:
                at, known = _vectors(
                    *(numbers, fids, first + j, brings & (first + j < stop), start, width),
                    *(requests, lists, SUM_BYTES),
                )
                target = (at[:, None] + column * SUM_BYTES).to(tl.pointer_type(SUM))
                there = known[:, None] & (column < width)
                tl.atomic_add(target, grad, mask=there, sem="relaxed")
                j += 1
            t += 1
        left += COLUMNS


def _types(dtype: torch.dtype) -> dict[str, object]:
    value = {
        torch.float32: tl.float32,
        torch.float64: tl.float64,
        torch.bfloat16: tl.bfloat16,
        torch.float16: tl.float16,
    }[dtype]
    return {"VALUE": value, "SUM": tl.float64 if value is tl.float64 else tl.float32}


def _grid(work: Work, call: Call) -> tuple[int, int, int]:
    return -(-call.most_rows // work.rows), len(work.units), call.requests


def to_layout(work: Work, call: Call, dtype: torch.dtype) -> None:
    """Fills all outputs; halves are summed in float32. Words that lead nowhere count as zeros."""
    grid = _grid(work, call)
    if min(grid) > 0:
        _to_layout[grid](
            *(call.numbers, work.tasks, work.units, call.fids, call.offsets, call.nfl),
            *(call.requests, call.lists),
            **_types(dtype),
            BYTES=dtype.itemsize,
            ROWS=work.rows,
            COLUMNS=work.columns,
            enable_fp_fusion=False,
        )


def to_layout_backward(work: Work, call: Call, dtype: torch.dtype, scale: Tensor) -> None:
    """Adds gradients of outputs (of `dtype`) to those of the lists, in no fixed order.

    The lists hold zeros, of float32 or float64; `scale` is on the device and of their type.
    """
    grid = _grid(work, call)
    if min(grid) > 0:
        _to_layout_backward[grid](
            *(call.numbers, work.tasks, work.units, call.fids, call.offsets, call.nfl),
            *(scale, call.requests, call.lists),
            **_types(dtype),
            BYTES=dtype.itemsize,
            SUM_BYTES=scale.element_size(),
            ROWS=work.rows,
            COLUMNS=work.columns,
            enable_fp_fusion=False,
        )
