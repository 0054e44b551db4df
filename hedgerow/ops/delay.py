"""Delay compensation: corrects a gradient that an asynchronous worker computed on an older row."""

from __future__ import annotations

from torch import Tensor

from ..core.shapes import Float32


def delay_compensation(
    g: Float32[Tensor, "..."],
    w: Float32[Tensor, "..."],
    w_latest: Float32[Tensor, "..."],
    lam: float,
) -> Float32[Tensor, "..."]:
    """`g + lam * g**2 * (w - w_latest)`; the result is what the optimizer gets in place of `g`.

    >>> import torch
    >>> delay_compensation(torch.tensor([10.0]), torch.tensor([0.0]), torch.tensor([0.1]), 0.1)
    tensor([9.])
    """
    return g + lam * g * g * (w - w_latest)
