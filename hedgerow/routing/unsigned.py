"""Unsigned 64-bit arithmetic by torch's signed one: on every device, and without values."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.hashing import signed64
from ..core.shapes import Bool, Int64

_LEAST = -(2**63)  # flipping the top bit turns unsigned order into signed order


def ordered(keys: Int64[Tensor, "n"]) -> Int64[Tensor, "n"]:
    """Numbers whose signed order is the unsigned order of `keys`.

    >>> ordered(torch.tensor([0, -1])).tolist() == [-(2**63), 2**63 - 1]
    True
    """
    return keys ^ _LEAST


def below(keys: Int64[Tensor, "n"], limit: int) -> Bool[Tensor, "n"]:
    """Which keys are below an unsigned number.

    >>> below(torch.tensor([5, -1]), 2**64 - 1).tolist()
    [True, False]
    """
    return ordered(keys) < signed64(limit ^ 2**63)


def divide(keys: Int64[Tensor, "n"], by: int) -> tuple[Int64[Tensor, "n"], Int64[Tensor, "n"]]:
    """Quotient and rest of unsigned keys; `by` lies in 1..2^63-1.

    >>> quotient, rest = divide(torch.tensor([9, -1]), 10)
    >>> quotient.tolist(), rest.tolist()
    ([0, 1844674407370955161], [9, 5])
    """
    half = (keys >> 1) & (2**63 - 1)  # the mask makes the signed shift a logical one
    quotient = half.div(by, rounding_mode="floor") << 1
    rest = keys - quotient * by  # below twice `by`, so perhaps beyond the signed numbers
    over = ~below(rest, by)
    return quotient + over, torch.where(over, rest - by, rest)
