"""Plain twins of the kernels that pool the features of several tables and spread gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from hedgerow.core.shapes import Float32, Int32, Int64
from hedgerow.kernels.layout import LANES, Arrays, FirstValues, RowSegment
from hedgerow.kernels.output_gradients import DENSE, Occurrences, OutputGradients
from hedgerow.kernels.pool_features import FIRST, MAX, MEAN, SQRTN, Features, Known, Pooled

from . import kernels_table

__all__ = ["lookup_features", "pool_features", "spread", "spread_at"]


@dataclass(frozen=True, slots=True)
class _Draw:
    """`FirstValues` as a line of `draws_of` has them."""

    kind: str
    a: float
    scale: float
    seed: int


def _alone(
    table: Arrays, parts: Sequence[RowSegment], k: int
) -> tuple[Arrays, list[RowSegment], int]:
    """Table `k` of several, its parts, and its first slot."""
    assert table.spans is not None
    first, count = table.spans[k].tolist()
    index = table.index[first : first + count + 1].clone()
    index[-1, 1, -3:] = table.index[-1, 1, -3:]  # the words of the slot key, behind all tables
    rows = table.values[first * LANES : (first + count) * LANES + 2]
    own: list[RowSegment] = []
    for part in parts:
        draw: FirstValues | _Draw = part.first
        if part.draws is not None:
            seed, *bits = part.draws[k].tolist()
            low, scale = torch.tensor(bits, dtype=torch.int32).view(torch.float32).tolist()
            draw = _Draw(part.first.kind, low, scale, seed % 2**64)
        own.append(replace(part, first=draw, draws=None))  # pyright: ignore[reportArgumentType]
    return Arrays(index, rows, table.dim), own, first * LANES


def _found(
    table: Arrays, parts: Sequence[RowSegment], k: int, ids: Int64[Tensor, "n"]
) -> tuple[Float32[Tensor, "n dim"], Int32[Tensor, "n"]]:
    """Rows and slots of ids of table `k`; slots are numbered through all tables."""
    alone, own, start = _alone(table, parts, k)
    rows = torch.empty(len(ids), table.dim)
    slots = kernels_table.lookup(alone, ids, rows, own)
    return rows, torch.where(slots >= 0, slots + start, -1).int()


def _known(
    table: Arrays, k: int, known: Known, share: slice
) -> tuple[Float32[Tensor, "n dim"], Int32[Tensor, "n"]]:
    """What `_found` tells, of ids whose slots are known."""
    assert table.spans is not None
    mine = known.slots[share]
    slots = torch.where(mine >= 0, mine + int(table.spans[k, 0]) * LANES, -1)
    others = torch.zeros(len(mine), table.dim) if known.others is None else known.others[share]
    rows = torch.where((slots >= 0)[:, None], table.values[slots.clamp(min=0), : table.dim], others)
    return rows, slots.int()


def lookup_features(
    table: Arrays,
    spans: Int64[Tensor, "F 2"],
    ids: Int64[Tensor, "n"],
    out: Float32[Tensor, "n dim"],
    parts: Sequence[RowSegment],
    borders: Int64[Tensor, "F+1"],
    room: int | None = None,
) -> tuple[Int32[Tensor, "n"], Int32[Tensor, "n"] | None]:
    """Rows of the ids of features, their slots, and with `room` where they went."""
    cuts = borders.tolist()
    slots = torch.empty(len(ids), dtype=torch.int32)
    rows = torch.empty(len(ids), dtype=torch.int32)
    whole = replace(table, spans=spans)
    for f, (start, stop) in enumerate(pairwise(cuts)):
        out[start:stop], slots[start:stop] = _found(whole, parts, f, ids[start:stop])
        rows[start:stop] = torch.arange(stop - start) + f * (room or 0)
    return slots, None if room is None else rows


def pool_features(
    table: Arrays,
    features: Features,
    ids: Int64[Tensor, "n"],
    offsets: Int64[Tensor, "names*samples+1"],
    shifts: Int64[Tensor, "F"],
    samples: int,
    weights: Float32[Tensor, "n"] | None = None,
    parts: Sequence[RowSegment] = (),
    known: Known | None = None,
) -> Pooled:
    """The vectors of all features: for each, one per sample, or n of `("first", n)`."""
    n, room, dim = len(ids), samples * max(features.fans), table.dim
    out = torch.zeros(samples * len(features.units), dim)
    slots, where = (torch.empty(n, dtype=torch.int32) for _ in range(2))
    divisors = torch.ones(n) if features.poolings & {MEAN, SQRTN} else None
    many = samples * sum(first >= 0 for first in features.largest)
    winners = torch.full((many, dim), -1, dtype=torch.int32) if MAX in features.poolings else None
    for f, k, place, pooling, fan, begin, largest in features.units.unique(dim=0).tolist():
        shift = int(shifts[f])
        for s in range(samples):
            start, stop = (offsets[place * samples + s : place * samples + s + 2] + shift).tolist()
            if known is None:
                rows, slots[start:stop] = _found(table, parts, k, ids[start:stop])
            else:
                rows, slots[start:stop] = _known(table, k, known, slice(start, stop))
            if weights is not None:
                rows = rows * weights[start:stop, None]
            vector = begin * samples + s * fan
            where[start:stop] = f * room + s * fan
            if pooling == FIRST:
                out[vector : vector + fan][: len(rows)] = rows[:fan]
                many = torch.arange(stop - start, dtype=torch.int32)
                where[start:stop] = torch.where(many < fan, where[start:stop] + many, -1)
            elif pooling == MAX and len(rows):
                out[vector] = rows.max(dim=0).values
                assert winners is not None
                ties = (rows == out[vector]).int().argmax(dim=0)
                winners[largest * samples + s] = ties.int() + start
            elif len(rows):
                divisor = torch.tensor(float(len(rows)))
                divisor = {MEAN: divisor, SQRTN: divisor.sqrt()}.get(pooling, torch.ones(()))
                out[vector] = kernels_table.in_order([torch.zeros(dim), *rows]) / divisor
                if divisors is not None:
                    divisors[start:stop] = divisor
    return Pooled(out, slots, Occurrences(room, where, divisors, weights, winners))


def spread(grads: OutputGradients, start: int, stop: int) -> Float32[Tensor, "stop-start dim"]:
    """One gradient per occurrence, of the occurrences from `start` to before `stop`."""
    return spread_at(grads, torch.arange(start, stop))


def spread_at(grads: OutputGradients, at: Int64[Tensor, "m"]) -> Float32[Tensor, "m dim"]:
    """One gradient per occurrence, of the occurrences `at` these positions."""
    made, out = grads.at, torch.zeros(len(at), grads.dim)
    by_address = {grad.data_ptr(): grad for grad in grads.held}
    words = 4 if grads.form == DENSE else 1
    for place, i in enumerate(at.tolist()):
        row = i if made.rows is None else int(made.rows[i])
        if row < 0:
            continue
        feature, row = divmod(row, made.room)
        begin, _, _, first = grads.places[feature].tolist()
        grad = by_address[grads.base.data_ptr() + 4 * words * begin]
        vector = grad.reshape(-1, grads.dim)[row].clone()
        if made.largest is not None and first >= 0:
            vector[made.largest[first + row] != i] = 0.0
        if made.divisors is not None:
            vector /= made.divisors[i]
        out[place] = vector if made.weights is None else vector * made.weights[i]
    return out
