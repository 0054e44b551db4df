"""Adds up the gradients of rows that occur often in a batch, many programs a row.

The order is that of `sum_gradients`: pieces of PIECE occurrences, each added in input order, then
the pieces in order. Runs of at most SHORT occurrences are left to whoever needs their sums.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.shapes import Float32
from . import layout
from .output_gradients import OutputGradients, arguments, form_of, gradient_at
from .runs import PIECE, SHORT, Runs
from .toolchain import columns_of, jit, programs_of, tl

AHEAD = tl.constexpr(16)  # occurrences whose loads are under way together


@jit
def _piece(
    order: tl.tensor,
    grads: tl.tuple,
    begin: tl.tensor,
    end: tl.tensor,
    DIM: tl.constexpr,
    FORM: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tl.tensor:
    """The sum of the occurrences from `begin` to `end`, one after the other."""
    column = tl.arange(0, COLUMNS)
    there = column < DIM
    total = gradient_at(grads, tl.load(order + begin), begin < end, column, there, DIM, FORM)
    at = begin + 1
    while at < end:
        for _ in tl.static_range(AHEAD):  # pyright: ignore[reportGeneralTypeIssues]
            more = at < end
            source = tl.load(order + at, mask=more, other=0)
            grad = gradient_at(grads, source, more, column, there, DIM, FORM)
            total = tl.where(more, total + grad, total)
            at += 1
    return total


@jit(do_not_specialize=["n", "firsts", "room"])
def _sum_long_runs(
    slots: tl.tensor,
    order: tl.tensor,
    pieces: tl.tensor,
    made: tl.tensor,
    base: tl.tensor,
    places: tl.tensor | None,
    rows: tl.tensor | None,
    divisors: tl.tensor | None,
    weights: tl.tensor | None,
    largest: tl.tensor | None,
    room: tl.tensor,
    sums: tl.tensor,
    n: tl.tensor,
    firsts: tl.tensor,
    DIM: tl.constexpr,
    FORM: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    column = tl.arange(0, COLUMNS)
    grads = (base, places, rows, divisors, weights, largest, room)
    program = tl.program_id(0)
    many = tl.load(made + 1)
    while program < many:
        begin = tl.load(pieces + program)
        inside = begin + tl.arange(0, PIECE)
        slot = tl.load(slots + begin)
        same = tl.load(slots + inside, mask=inside < n, other=-1) == slot
        # The sources are read here at once, though used one by one: they are near then.
        sources = tl.load(order + inside, mask=same, other=0)
        end = begin + tl.sum((same & (sources >= 0)).to(tl.int32), axis=0)
        total = _piece(order, grads, begin, end, DIM, FORM, COLUMNS)
        later = tl.load(slots + begin - 1, mask=begin > 0, other=-1) == slot
        place = tl.where(later, firsts + begin // PIECE, begin // SHORT).to(tl.int64)
        tl.store(sums + place * DIM + column, total, mask=column < DIM)
        program += tl.num_programs(0)


def sum_long_runs(
    runs: Runs, grads: Float32[Tensor, "n dim"] | OutputGradients
) -> tuple[Float32[Tensor, "pieces dim"], int]:
    """The sums of all pieces of long runs, and how many places there are for first ones.

    The first piece of a run stands at the run's begin // SHORT, another at its own begin // PIECE
    behind those places. Two never meet there; other places hold nothing.
    """
    n, dim = grads.shape
    firsts, laters = -(-n // layout.SHORT), -(-n // layout.PIECE)
    sums = torch.empty(firsts + laters, dim, dtype=torch.float32, device=grads.device)
    if n:
        columns = columns_of(dim)
        _sum_long_runs[(min(len(runs.pieces), programs_of(grads.device)),)](
            *(runs.slots, runs.order, runs.pieces, runs.counts),
            *(*arguments(grads), sums, n, firsts),
            DIM=dim,
            FORM=form_of(grads),
            COLUMNS=columns,
            num_warps=max(1, min(4, columns // 128)),
            enable_fp_fusion=False,
        )
    return sums, firsts
