"""One uniform number for an id, a number and a step: what admission by chance decides by."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.hashing import signed64
from ..core.shapes import Float32, Int64
from .toolchain import blocks, jit, tl

_CHANCE = 2  # the stream; first values have 0


@jit(do_not_specialize=["n", "seed", "tag"])
def _draws(
    ids: tl.tensor,
    numbers: tl.tensor,
    out: tl.tensor,
    n: tl.tensor,
    seed: tl.tensor,
    tag: tl.tensor,
    ROWS: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    key = tl.load(ids + i, mask=i < n, other=0)
    number = tl.load(numbers + i, mask=i < n, other=0)
    low, high = (key & 0xFFFFFFFF).to(tl.uint32), (key >> 32).to(tl.uint32)
    step = (tl.zeros_like(key) + tag).to(tl.uint32)
    word, _, _, _ = tl.philox(seed.to(tl.int64), low, high, number.to(tl.uint32), step)
    tl.store(out + i, (word >> 8).to(tl.float32) * (1.0 / 16777216.0), mask=i < n)


def draws(
    ids: Int64[Tensor, "n"], numbers: Int64[Tensor, "n"], seed: int, step: int
) -> Float32[Tensor, "n"]:
    """A number in [0, 1) for every id and its `numbers`-th question at this step."""
    out = torch.empty(len(ids), dtype=torch.float32, device=ids.device)
    if len(ids):
        tag = (_CHANCE | step << 8) & 0xFFFFFFFF
        _draws[blocks(len(ids), 128)](ids, numbers, out, len(ids), signed64(seed), tag, ROWS=128)
    return out
