"""Writes down one gradient per occurrence, where a store cannot read those of the outputs."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.shapes import Float32, Int64
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
    at: tl.tensor | None,
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
    source = start + i if at is None else tl.load(at + i, mask=i < n, other=0)
    grad = gradient_at(grads, source, i < n, column, column < DIM, DIM, FORM)
    tl.store(out + i * DIM + column, grad, mask=(i < n) & (column < DIM))


def spread(grads: OutputGradients, start: int, stop: int) -> Float32[Tensor, "stop-start dim"]:
    """One gradient per occurrence, of the occurrences from `start` to before `stop`."""
    return _spread_into(grads, None, start, stop - start)


def spread_at(grads: OutputGradients, at: Int64[Tensor, "m"]) -> Float32[Tensor, "m dim"]:
    """One gradient per occurrence, of the occurrences `at` these positions."""
    return _spread_into(grads, at, 0, len(at))


def _spread_into(
    grads: OutputGradients, at: Int64[Tensor, "m"] | None, start: int, n: int
) -> Float32[Tensor, "n dim"]:
    out = torch.empty(n, grads.dim, dtype=torch.float32, device=grads.device)
    if n and grads.dim:
        tile = reader_tile(grads.dim)
        _spread[blocks(n, tile["ROWS"])](
            *(*arguments(grads), at, out, start, n),
            DIM=grads.dim,
            FORM=grads.form,
            **tile,
            enable_fp_fusion=False,
        )
    return out
