"""Takes rows out of a table."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.shapes import Bool, Int64
from . import layout
from .find import live_count, probe
from .layout import Arrays, Grouped
from .placement import EMPTY, ERASED, mix_at, own_place, word
from .sum_gradients import heads
from .toolchain import blocks, jit, tl

NEWBORN = tl.constexpr(layout.NEWBORN)


@jit(do_not_specialize=["n", "buckets"])
def _erase(
    ids: tl.tensor,
    order: tl.tensor | None,
    used: tl.tensor | None,
    index: tl.tensor,
    erased: tl.tensor,
    n: tl.tensor,
    buckets: tl.tensor,
    LINES: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    key, source, head = heads(ids, order, i, n, live_count(used, n))
    slot = probe(index, mix_at(index, buckets, LINES), key, head, 0, buckets, LINES)
    there = slot >= 0
    special, _ = own_place(key, 0, buckets)
    gone = tl.where(special, EMPTY, ERASED)
    tl.store(index + word(slot, 0, LINES), gone, mask=there)
    for line in tl.static_range(1, LINES):  # pyright: ignore[reportGeneralTypeIssues]
        tl.store(index + word(slot, line, LINES), tl.zeros_like(slot) + NEWBORN, mask=there)
    tl.store(erased + source, there, mask=there)


def erase(
    table: Arrays, grouped: Grouped, used: Int64[Tensor, "1"] | None = None
) -> Bool[Tensor, "n"]:
    """Takes the rows of these ids out and says which were there; of equal ids the first was."""
    n = len(grouped.ids)
    erased = torch.zeros_like(grouped.ids, dtype=torch.bool)
    if n:
        _erase[blocks(n, 32)](
            *(grouped.ids, grouped.order, used, table.index, erased, n, table.buckets),
            LINES=table.lines,
            ROWS=32,
        )
    return erased
