"""Limits on what one update may do to one row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import checks
from ..core.shapes import Float32, Int64


@dataclass(frozen=True, slots=True)
class ClipRow:
    """Scales the summed gradient of a row down to this norm, if it is longer.

    >>> ids, grads = torch.tensor([7, 7, 8]), torch.tensor([[3.0], [1.0], [0.5]])
    >>> ClipRow(2.0).summed(ids, grads)
    (tensor([7, 8]), tensor([[2.0000],
            [0.5000]]), tensor([2, 1]))
    """

    norm: float

    def __post_init__(self) -> None:
        checks.setting("ClipRow", "norm", self.norm, above=0)

    def summed(
        self, ids: Int64[Tensor, "n"], grads: Float32[Tensor, "n dim"]
    ) -> tuple[Int64[Tensor, "u"], Float32[Tensor, "u dim"], Int64[Tensor, "u"]]:
        """Each id once, its gradient, and how often it occurred."""
        unique, inverse, counts = ids.unique(return_inverse=True, return_counts=True)
        total = grads.new_zeros(len(unique), grads.shape[1]).index_add_(0, inverse, grads)
        length = torch.linalg.vector_norm(total, dim=1, keepdim=True)
        return unique, total * (self.norm / length.clamp(min=self.norm)), counts
