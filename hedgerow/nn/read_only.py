"""What tells read-only modules from those that train, and how training them is refused."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from ..core.errors import StateError


class ReadOnlyRows(nn.Module):
    """Base of modules that read rows and never change them."""


class NoBackward(torch.autograd.Function):
    """Hands vectors on, and refuses a backward: without it dense weights alone would get one."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *found: Tensor) -> tuple[Tensor, ...]:
        """The same vectors."""
        del ctx, anchor
        return tuple(vectors.view_as(vectors) for vectors in found)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> NoReturn:
        """Refused."""
        del ctx, grads
        refuse("backward of")


def refuse(what: str) -> NoReturn:
    """Says that the model is read-only, and what to do."""
    raise StateError(
        f"{what} a frozen model, which is read-only; use the model that hr.freeze was given: it "
        f"shares rows and weights, and trains on."
    )
