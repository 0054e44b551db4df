"""Notes the slots that a step uses: when, and that their rows are changed."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.shapes import Bool, Int32
from .toolchain import blocks, jit, tl

_ROWS = 512


@jit(do_not_specialize=["n", "now"])
def _mark(
    slots: tl.tensor,
    used: tl.tensor,
    changed: tl.tensor | None,
    n: tl.tensor,
    now: tl.tensor,
    ROWS: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    slot = tl.load(slots + i, mask=i < n, other=-1).to(tl.int64)
    tl.store(used + slot, tl.zeros((ROWS,), tl.int32) + now, mask=slot >= 0)
    if changed is not None:
        tl.store(changed + slot, tl.full((ROWS,), 1, tl.int8), mask=slot >= 0)


def mark(
    slots: Int32[Tensor, "n"],
    used: Int32[Tensor, "slots"],
    changed: Bool[Tensor, "slots"] | None,
    now: int,
) -> None:
    """Sets `used` of these slots to `now`, and `changed` if given; negative slots are left out."""
    n = len(slots)
    if n:
        flags = None if changed is None else changed.view(torch.int8)
        _mark[blocks(n, _ROWS)](slots, used, flags, n, now, ROWS=_ROWS)
