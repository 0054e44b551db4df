"""One SGD step on the row of each id of a batch: sum, find or insert, first value, update, in one
pass over gradients and rows."""

from __future__ import annotations

from torch import Tensor

from ..core.hashing import signed64
from ..core.shapes import Float32, Int64
from .find import live_count
from .find_or_insert import claim
from .first_values import start_rows
from .layout import Arrays, FirstValues, Grouped
from .lookup import rows_at
from .sum_gradients import heads, sum_pieces, summed
from .toolchain import blocks, jit, tl, writer_tile


@jit
def sgd_step(w: tl.tensor, g: tl.tensor, rate: tl.tensor, decay: tl.tensor) -> tl.tensor:
    """The row after one step; every operation rounded, as in the core."""
    return w - rate * (g + decay * w)


@jit
def count_up(
    counts: tl.tensor, inserted: tl.tensor, refused: tl.tensor, dropped: tl.tensor
) -> None:
    """Adds to the counts of `Applied`; programs with nothing to say do not queue for them."""
    inserted, refused = inserted.to(tl.int64), refused.to(tl.int64)
    born, kept_out, left_out = tl.sum(inserted), tl.sum(refused), tl.sum(dropped)
    if born + kept_out + left_out > 0:
        tl.atomic_add(counts, born, sem="relaxed")
        tl.atomic_add(counts + 1, kept_out, sem="relaxed")
        tl.atomic_add(counts + 2, left_out, sem="relaxed")


@jit(do_not_specialize=["n", "buckets", "seed", "now"])
def _apply_sgd(
    ids: tl.tensor,
    order: tl.tensor,
    slots: tl.tensor | None,
    used: tl.tensor | None,
    grads: tl.tensor,
    piece_sums: tl.tensor,
    piece_counts: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    times: tl.tensor,
    counts: tl.tensor,
    n: tl.tensor,
    buckets: tl.tensor,
    now: tl.tensor,
    rate: tl.tensor,
    decay: tl.tensor,
    seed: tl.tensor,
    a: tl.tensor,
    scale: tl.tensor,
    KIND: tl.constexpr,
    DIM: tl.constexpr,
    STRIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live = live_count(used, n)
    key, source, head = heads(ids, order, i, n, live)
    total, count = summed(
        *(ids, order, grads, piece_sums, piece_counts),
        *(i, key, source, head, n, live),
        DIM,
        COLUMNS,
    )
    finite = tl.min((tl.abs(total) < float("inf")).to(tl.int32), axis=1) > 0
    wanted = head & finite
    if slots is None:
        known = tl.full((ROWS,), -1, tl.int64)
    else:
        known = tl.load(slots + source, mask=wanted, other=-1)
    found, born = claim(keys, key, wanted & (known < 0), buckets)
    slot = tl.where(known >= 0, known, found)
    w = rows_at(values, tl.where(born, -1, slot), DIM, STRIDE, COLUMNS)
    if tl.max(born.to(tl.int32), axis=0) > 0:
        first = start_rows(key, seed, a, scale, KIND, ROWS, COLUMNS)
        w = tl.where(born[:, None], first, w)
    w = sgd_step(w, total, rate, decay)
    column = tl.arange(0, COLUMNS)[None, :]
    there = slot >= 0
    tl.store(values + slot[:, None] * STRIDE + column, w, mask=there[:, None] & (column < DIM))
    tl.store(times + slot, tl.zeros_like(slot) + now, mask=there)
    count_up(counts, born, wanted & ~there, tl.where(head & ~finite, count, 0))


def apply_sgd(
    table: Arrays,
    grouped: Grouped,
    grads: Float32[Tensor, "n dim"],
    counts: Int64[Tensor, "3"],
    first: FirstValues,
    rate: float,
    decay: float,
    now: int,
    slots: Int64[Tensor, "n"] | None = None,
    used: Int64[Tensor, "1"] | None = None,
) -> None:
    """One step for each id with its summed gradient; adds to `counts` as `Applied` has them.

    An absent id is born first. `slots` are those of a lookup at the same ids, so that what it found
    is not looked for again. Sums that are not finite leave the table as it is.
    """
    n = len(grouped.ids)
    if n == 0:
        return
    tile = writer_tile(table.dim)
    _apply_sgd[blocks(n, tile["ROWS"])](
        *(grouped.ids, grouped.order, slots, used, grads, *sum_pieces(grouped, grads, used)),
        *(table.keys, table.values, table.times, counts, n, table.buckets, now, rate, decay),
        *(signed64(first.seed), first.a, first.scale),
        KIND=first.kind,
        **table.shape,
        **tile,
        enable_fp_fusion=False,
    )
