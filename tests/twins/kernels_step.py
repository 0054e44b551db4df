"""Plain twins of the parts of an optimizer step over sorted slots."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hedgerow.core.shapes import Float32, Int32, Int64
from hedgerow.kernels.layout import NO_STEP, PIECE, SHORT, Arrays, RowSegment, group
from hedgerow.kernels.output_gradients import OutputGradients
from hedgerow.kernels.runs import Marks, Runs

from . import kernels_table
from .kernels_features import spread

__all__ = ["runs", "seat", "step", "sum_long_runs", "update"]


def seat(
    table: Arrays,
    ids: Int64[Tensor, "n"],
    known: Int64[Tensor, "n"] | Int32[Tensor, "n"] | None = None,
    used: Int64[Tensor, "K"] | None = None,
    splits: Int64[Tensor, "K+1"] | None = None,
    *,
    insert: bool = True,
    marks: Marks | None = None,
) -> Int32[Tensor, "n"]:
    """The slot of each key; -1 for room, and below -1 a number of each id that found no place."""
    places = torch.full((len(ids),), -1, dtype=torch.int32)
    for i, id_ in enumerate(ids.tolist()):
        believed = -1 if known is None else int(known[i])
        if believed >= 0:
            places[i] = believed
        elif insert and (used is None or i < int(used)):
            slot, _ = kernels_table.insert_one(table, id_)
            places[i] = slot if slot >= 0 else -2 - (id_ & 0x3FFFFFFF)
    if marks is not None:
        there = places[places >= 0].long()
        marks.used[there] = marks.now
        if marks.changed is not None:
            marks.changed[there] = True
    return places


def runs(
    table: Arrays,
    places: Int32[Tensor, "n"],
    ids: Int64[Tensor, "n"],
    counts: Int64[Tensor, "3"] | Int64[Tensor, "K 3"],
    splits: Int64[Tensor, "K+1"] | None = None,
) -> Runs:
    """The runs of `places`; ids that found no room are counted."""
    slots, order = torch.sort(places, stable=True)
    counts[1] += len(ids[places < -1].unique())
    begins = [i for i, s in enumerate(slots.tolist()) if s >= 0 and (i == 0 or slots[i - 1] != s)]
    starts = torch.tensor([*begins, len(slots)], dtype=torch.int32)
    pieces = [
        at
        for begin, end in zip(begins, starts[1:].tolist(), strict=True)
        if end - begin > SHORT
        for at in range(begin, end, PIECE)
    ]
    made = torch.tensor([len(begins), len(pieces)], dtype=torch.int32)
    return Runs(slots, order, starts, made, torch.tensor(pieces, dtype=torch.int32))


def sum_long_runs(
    runs: Runs, grads: Float32[Tensor, "n dim"] | OutputGradients
) -> tuple[Float32[Tensor, "pieces dim"], int]:
    """The sums of all pieces of long runs, and how many places there are for first ones."""
    grads = _rows(grads)
    n, dim = grads.shape
    firsts = -(-n // SHORT)
    sums = torch.zeros(firsts + -(-n // PIECE), dim)
    for begin in runs.pieces[: int(runs.counts[1])].tolist():
        slot = runs.slots[begin]
        end = begin + int((runs.slots[begin : begin + PIECE] == slot).sum())
        later = begin > 0 and runs.slots[begin - 1] == slot
        place = firsts + begin // PIECE if later else begin // SHORT
        sums[place] = kernels_table.in_order([grads[i] for i in runs.order[begin:end]])
    return sums, firsts


def step(
    table: Arrays,
    ids: Int64[Tensor, "n"],
    grads: Float32[Tensor, "n dim"] | OutputGradients,
    counts: Int64[Tensor, "3"] | Int64[Tensor, "K 3"],
    parts: Sequence[RowSegment],
    rates: Sequence[float],
    now: int,
    slots: Int64[Tensor, "n"] | Int32[Tensor, "n"] | None = None,
    used: Int64[Tensor, "K"] | None = None,
    splits: Int64[Tensor, "K+1"] | None = None,
    at_step: int = NO_STEP,
) -> None:
    """One step for each id with its summed gradient, as `apply` over sorted ids does it."""
    kernels_table.apply(
        *(table, group(ids), _rows(grads), counts, parts, rates, now, slots, used), at_step=at_step
    )


def update(
    table: Arrays,
    ids: Int64[Tensor, "n"],
    batch: Runs,
    grads: Float32[Tensor, "n dim"] | OutputGradients,
    counts: Int64[Tensor, "3"] | Int64[Tensor, "K 3"],
    parts: Sequence[RowSegment],
    rates: Sequence[float],
    now: int,
    splits: Int64[Tensor, "K+1"] | None = None,
    at_step: int = NO_STEP,
) -> None:
    """`step` for ids whose occurrences are in runs, all of rows that are set."""
    live = torch.zeros(len(ids), dtype=torch.bool)
    live[batch.order[batch.slots >= 0]] = True
    known = torch.full((len(ids),), -1)
    known[batch.order] = batch.slots.long()
    at = live.nonzero()[:, 0]
    kernels_table.apply(
        *(table, group(ids[at]), _rows(grads)[at], counts, parts, rates, now, known[at]),
        at_step=at_step,
    )


def _rows(grads: Float32[Tensor, "n dim"] | OutputGradients) -> Float32[Tensor, "n dim"]:
    """One gradient per occurrence."""
    return grads if isinstance(grads, Tensor) else spread(grads, 0, grads.n)
