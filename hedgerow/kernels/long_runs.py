"""Adds up the gradients of rows that occur often in a batch, many programs a row.

The order is that of `sum_gradients`: pieces of PIECE occurrences, each added in input order, then
the pieces in order. Runs of at most SHORT occurrences are left to whoever needs their sums.
"""

from __future__ import annotations

from torch import Tensor

from ..core.shapes import Float32
from . import layout
from .runs import Runs
from .sum_gradients import PIECE
from .toolchain import columns_of, jit, tl

SHORT = tl.constexpr(layout.SHORT)
AHEAD = tl.constexpr(16)  # occurrences whose loads are under way together


@jit
def _first_piece(slots: tl.tensor, block: tl.tensor, n: tl.tensor) -> tl.tensor:
    """Where the run begins that begins in this block of SHORT positions and is longer, or -1."""
    i = block.to(tl.int64) * SHORT + tl.arange(0, SHORT)
    slot = tl.load(slots + i, mask=i < n, other=-1)
    before = tl.load(slots + i - 1, mask=(i > 0) & (i < n), other=-1)
    later = tl.load(slots + i + SHORT, mask=i + SHORT < n, other=-1)
    return tl.max(tl.where((slot >= 0) & (slot != before) & (slot == later), i, -1), axis=0)


@jit
def _later_piece(slots: tl.tensor, block: tl.tensor, n: tl.tensor) -> tl.tensor:
    """Where the one piece but the first that begins in this block of PIECE positions begins, or -1.

    It is one of the row that stands at the first of these positions and before it.
    """
    base = block.to(tl.int64) * PIECE
    slot = tl.load(slots + base)
    at = base * 0 - 1
    if (slot >= 0) & (tl.load(slots + base - 1, mask=base > 0, other=-1) == slot):
        begin, above = base * 0, base - 1  # where the run begins, by bisection
        while begin < above:
            middle = (begin + above) // 2
            lower = tl.load(slots + middle) < slot
            begin = tl.where(lower, middle + 1, begin)
            above = tl.where(lower, above, middle)
        piece = begin + (base - begin + PIECE - 1) // PIECE * PIECE
        goes_on = tl.load(slots + piece, mask=piece < n, other=-1) == slot
        at = tl.where(goes_on, piece, at)
    return at


@jit(do_not_specialize=["n", "firsts"])
def _sum_long_runs(
    slots: tl.tensor,
    order: tl.tensor,
    grads: tl.tensor,
    sums: tl.tensor,
    n: tl.tensor,
    firsts: tl.tensor,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    program = tl.program_id(0)
    if program < firsts:
        begin = _first_piece(slots, program, n)
    else:
        begin = _later_piece(slots, program - firsts, n)
    if begin >= 0:
        inside = begin + tl.arange(0, PIECE)
        same = tl.load(slots + inside, mask=inside < n, other=-1) == tl.load(slots + begin)
        end = begin + tl.sum(same.to(tl.int64), axis=0)
        column = tl.arange(0, COLUMNS)
        there = column < DIM
        total = tl.load(grads + tl.load(order + begin) * DIM + column, mask=there, other=0.0)
        at = begin + 1
        while at < end:
            for _ in tl.static_range(AHEAD):
                more = at < end
                source = tl.load(order + at, mask=more, other=0)
                grad = tl.load(grads + source * DIM + column, mask=there & more, other=0.0)
                total = tl.where(more, total + grad, total)
                at += 1
        tl.store(sums + program.to(tl.int64) * DIM + column, total, mask=there)


def sum_long_runs(
    runs: Runs, grads: Float32[Tensor, "n dim"]
) -> tuple[Float32[Tensor, "pieces dim"], int]:
    """The sums of all pieces of long runs, and how many places there are for first ones.

    The first piece of a run stands at the run's begin // SHORT, another at its own begin // PIECE
    behind those places. Other places hold nothing.
    """
    n, dim = grads.shape
    firsts, laters = -(-n // layout.SHORT), -(-n // layout.PIECE)
    sums = grads.new_empty(firsts + laters, dim)
    if n:
        columns = columns_of(dim)
        _sum_long_runs[(firsts + laters,)](
            *(runs.slots, runs.order, grads, sums, n, firsts),
            DIM=dim,
            COLUMNS=columns,
            num_warps=max(1, min(4, columns // 128)),
        )
    return sums, firsts
