"""Sums the gradients of equal ids in an order that depends only on their input order.

Up to PIECE occurrences of an id are summed one after the other, as in the host table, so the sums
are equal bit for bit. Of more occurrences, each further PIECE are summed by a separate program,
then the pieces one after the other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.shapes import Float32, Int64
from . import layout
from .find import live_count
from .layout import Grouped
from .toolchain import blocks, jit, reader_tile, tl

PIECE = tl.constexpr(layout.PIECE)
AHEAD = tl.constexpr(4)  # occurrences whose loads are in flight together


@jit
def heads(
    ids: tl.tensor, order: tl.tensor | None, i: tl.tensor, n: tl.tensor, live: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Returns the id at each grouped position i, its source, and whether a group begins there.

    Without an order all ids are distinct. Unused positions at the end of the input may hold any
    ids. They sort to the end of their group, so a group that begins with one is unused altogether.
    """
    key = tl.load(ids + i, mask=i < n, other=0)
    if order is None:
        return key, i, i < live
    else:  # noqa: RET505 (Triton wants both arms)
        before = tl.load(ids + i - 1, mask=(i > 0) & (i < n), other=0)
        source = tl.load(order + i, mask=i < n, other=0)
        return key, source, (i < n) & ((i == 0) | (key != before)) & (source < live)


@jit
def follows(
    ids: tl.tensor,
    order: tl.tensor,
    at: tl.tensor,
    key: tl.tensor,
    head: tl.tensor,
    n: tl.tensor,
    live: tl.tensor,
) -> tuple[tl.tensor, tl.tensor]:
    """Returns the source of position `at`, and whether it is another occurrence of `key`."""
    inside = head & (at < n)
    other = tl.load(ids + at, mask=inside, other=0)
    source = tl.load(order + at, mask=inside, other=0)
    return source, inside & (other == key) & (source < live)


@jit
def _piece(
    ids: tl.tensor,
    order: tl.tensor,
    grads: tl.tensor,
    i: tl.tensor,
    key: tl.tensor,
    source: tl.tensor,
    begins: tl.tensor,
    n: tl.tensor,
    live: tl.tensor,
    START: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Returns the sum of at most PIECE occurrences from i on where one begins, and their number."""
    column = START + tl.arange(0, COLUMNS)[None, :]
    inside = column < START + DIM
    here = begins[:, None] & inside
    total = tl.load(grads + source[:, None] * WIDTH + column, mask=here, other=0.0)
    count = begins.to(tl.int64)
    more = begins
    done = tl.full((), 1, tl.int32)
    while (done < PIECE) & (tl.max(more.to(tl.int32), axis=0) > 0):
        for _ in tl.static_range(AHEAD):
            source, more = follows(ids, order, i + done, key, begins, n, live)
            more = more & (done < PIECE)
            here = more[:, None] & inside
            grad = tl.load(grads + source[:, None] * WIDTH + column, mask=here, other=0.0)
            total = tl.where(here, total + grad, total)
            count += more.to(tl.int64)
            done += 1
    return total, count


@jit(do_not_specialize=["n"])
def _sum_pieces(
    ids: tl.tensor,
    order: tl.tensor,
    used: tl.tensor | None,
    grads: tl.tensor,
    sums: tl.tensor,
    counts: tl.tensor,
    n: tl.tensor,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Sums the piece, after the first of its group, that begins in a block of PIECE positions.

    At most one such piece begins there. It belongs to the id at the first of these positions, whose
    group begins before.
    """
    base = tl.program_id(0).to(tl.int64) * PIECE
    key = tl.load(ids + base)
    begin, above = base * 0, base  # where the group of this id begins, by bisection
    if (base > 0) & (tl.load(ids + tl.maximum(base - 1, 0)) != key):
        begin = base
    while begin < above:
        middle = (begin + above) // 2
        lower = tl.load(ids + middle) < key
        begin = tl.where(lower, middle + 1, begin)
        above = tl.where(lower, above, middle)
    first = begin + (base - begin + PIECE - 1) // PIECE * PIECE
    i = first + tl.zeros((1,), tl.int64)
    live = live_count(used, n)
    keys = key + tl.zeros((1,), tl.int64)
    source, begins = follows(ids, order, i, keys, i > begin, n, live)
    total, count = _piece(ids, order, grads, i, keys, source, begins, n, live, 0, DIM, DIM, COLUMNS)
    column = tl.arange(0, COLUMNS)[None, :]
    at = tl.program_id(0).to(tl.int64) + tl.zeros((1,), tl.int64)
    tl.store(sums + at[:, None] * DIM + column, total, mask=column < DIM)
    tl.store(counts + at, count)


def sum_pieces(
    grouped: Grouped, grads: Float32[Tensor, "n dim"], used: Int64[Tensor, "1"] | None = None
) -> tuple[Float32[Tensor, "pieces dim"], Int64[Tensor, "pieces"]]:
    """Returns sum and size of the pieces after the first, each at its grouped position // PIECE."""
    n, dim = grads.shape
    pieces = -(-n // layout.PIECE)
    sums, counts = grads.new_empty(pieces, dim), grouped.ids.new_empty(pieces)
    if n:
        columns = reader_tile(dim)["COLUMNS"]
        _sum_pieces[(pieces,)](
            *(grouped.ids, grouped.order, used, grads, sums, counts, n),
            DIM=dim,
            COLUMNS=columns,
            num_warps=max(1, min(4, columns // 64)),
        )
    return sums, counts


@jit
def summed(
    batch: tl.tuple,
    i: tl.tensor,
    key: tl.tensor,
    source: tl.tensor,
    head: tl.tensor,
    n: tl.tensor,
    live: tl.tensor,
    START: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Returns the gradient sum of each group that begins at i, and its number of occurrences.

    It covers DIM of the WIDTH columns, from START on.
    """
    ids, order, grads, piece_sums, piece_counts = batch
    column = START + tl.arange(0, COLUMNS)[None, :]
    inside = column < START + DIM
    if order is None:
        here = head[:, None] & inside
        total = tl.load(grads + source[:, None] * WIDTH + column, mask=here, other=0.0)
        return total, head.to(tl.int64)
    else:  # noqa: RET505 (Triton wants both arms)
        total, count = _piece(
            ids, order, grads, i, key, source, head, n, live, START, DIM, WIDTH, COLUMNS
        )
        at = i + PIECE
        source, more = follows(ids, order, at, key, head, n, live)
        while tl.max(more.to(tl.int32), axis=0) > 0:
            here = more[:, None] & inside
            piece = at // PIECE
            part = tl.load(piece_sums + piece[:, None] * WIDTH + column, mask=here, other=0.0)
            total = tl.where(here, total + part, total)
            count += tl.load(piece_counts + piece, mask=more, other=0)
            at += PIECE
            source, more = follows(ids, order, at, key, head, n, live)
        return total, count


@jit(do_not_specialize=["n"])
def _sum_gradients(
    ids: tl.tensor,
    order: tl.tensor,
    used: tl.tensor | None,
    grads: tl.tensor,
    piece_sums: tl.tensor,
    piece_counts: tl.tensor,
    sums: tl.tensor,
    counts: tl.tensor,
    n: tl.tensor,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)[None, :]
    live = live_count(used, n)
    key, source, head = heads(ids, order, i, n, live)
    batch = (ids, order, grads, piece_sums, piece_counts)
    total, count = summed(batch, i, key, source, head, n, live, 0, DIM, DIM, COLUMNS)
    tl.store(sums + i[:, None] * DIM + column, total, mask=(i < n)[:, None] & (column < DIM))
    tl.store(counts + i, count, mask=i < n)


def sum_gradients(
    grouped: Grouped, grads: Float32[Tensor, "n dim"], used: Int64[Tensor, "1"] | None = None
) -> tuple[Float32[Tensor, "n dim"], Int64[Tensor, "n"]]:
    """Returns sum and occurrences of each id where its group begins; zeros elsewhere."""
    n, dim = grads.shape
    sums, counts = torch.empty_like(grads), torch.empty_like(grouped.ids)
    if n:
        tile = reader_tile(dim)
        _sum_gradients[blocks(n, tile["ROWS"])](
            *(grouped.ids, grouped.order, used, grads, *sum_pieces(grouped, grads, used)),
            *(sums, counts, n),
            DIM=dim,
            **tile,
        )
    return sums, counts
