"""The weight of all uses of a row, as the core and the kernels add it up: see `csrc/evict.h`.

A float of 31 bits: an exponent of 17, which starts anew behind its end, over a fraction of 14.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .shapes import Int64

MARK_BITS = 31
MARK = 2**MARK_BITS - 1  # of a stamp, below its seconds
FRACTION_BITS = 14
ONE = 2**FRACTION_BITS
AHEAD = 32 * ONE  # so far a weight may lie above that of one use now: 2^32 uses


def weights_added(one: int, other: int) -> int:
    """The weight of all uses of two: floats of 17 bits of exponent over 14 of fraction."""
    if one == 0 or other == 0:
        return one | other
    ahead = (one - other) & MARK <= AHEAD
    larger, smaller = (one, other) if ahead else (other, one)
    apart = ((larger >> FRACTION_BITS) - (smaller >> FRACTION_BITS)) & (MARK >> FRACTION_BITS)
    if apart > FRACTION_BITS + 1:
        return larger
    exponent, half = larger >> FRACTION_BITS, (1 << apart) >> 1
    total = ONE + larger % ONE + ((ONE + smaller % ONE + half) >> apart)
    if total >= 2 * ONE:
        total, exponent = (total + 1) >> 1, exponent + 1
    return max(1, (exponent << FRACTION_BITS | total % ONE) & MARK)


def weight_times(one: int, n: int) -> int:
    """The weight of `n` uses of this weight.

    >>> weight_times(ONE, 3) == weights_added(weights_added(ONE, ONE), ONE)
    True
    """
    return int(weights_times(one, torch.tensor(n)))


def weights_times(one: int, n: Int64[Tensor, "n"]) -> Int64[Tensor, "n"]:
    """The weights of `n` uses of this weight each; of none at all 0."""
    n = n.clamp(max=2**32 - 1)
    total = (ONE + one % ONE) * n.clamp(min=1)
    apart = _bits(total) - 1 - FRACTION_BITS
    half = torch.bitwise_left_shift(torch.ones_like(total), apart) >> 1
    total = torch.bitwise_right_shift(total + half, apart)
    carry = total == 2 * ONE
    exponent = (one >> FRACTION_BITS) + apart + carry.long()
    weight = (exponent << FRACTION_BITS | torch.where(carry, ONE, total) % ONE) & MARK
    return torch.where(n < 1, 0, weight.clamp(min=1)) if one else torch.zeros_like(n)


def _bits(numbers: Int64[Tensor, "n"]) -> Int64[Tensor, "n"]:
    """How many bits each needs; below 2^53 a float holds it exactly."""
    return torch.frexp(numbers.double()).exponent.long()
