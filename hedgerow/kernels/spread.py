"""Writes down one gradient per occurrence, where a store cannot read those of the outputs."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.shapes import Float32
from .output_gradients import OutputGradients, arguments, gradient_at
from .toolchain import blocks, jit, reader_tile, tl


@jit(do_not_specialize=["n", "room", "start"])
def _spread(
    base: tl.tensor,
    places: tl.tensor,
    rows: tl.tensor | None,
    divisors: tl.tensor | None,
    weights: tl.tensor | None,
    largest: tl.tensor | None,
    room: tl.tensor,
    out: tl.tensor,
    start: tl.tensor,
    n: tl.tensor,
    DIM: tl.constexpr,
    FORM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    grads = (base, places, rows, divisors, weights, largest, room)
    grad = gradient_at(grads, start + i, i < n, column, column < DIM, DIM, FORM)
    tl.store(out + i * DIM + column, grad, mask=(i < n) & (column < DIM))


def spread(grads: OutputGradients, start: int, stop: int) -> Float32[Tensor, "stop-start dim"]:
    """One gradient per occurrence, of the occurrences from `start` to before `stop`."""
    n, dim = stop - start, grads.dim
    out = torch.empty(n, dim, dtype=torch.float32, device=grads.device)
    if n and dim:
        tile = reader_tile(dim)
        _spread[blocks(n, tile["ROWS"])](
            *(*arguments(grads), out, start, n),
            DIM=dim,
            FORM=grads.form,
            **tile,
            enable_fp_fusion=False,
        )
    return out
