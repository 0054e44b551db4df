"""The weight of all uses of a row, added as in the core and the kernels. See `csrc/evict.h`.

A weight is a 31-bit float: a 17-bit exponent that wraps around, above a 14-bit fraction.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .shapes import Int64

MARK_BITS = 31
MARK = 2**MARK_BITS - 1  # the low bits of a use stamp; the seconds are above them
FRACTION_BITS = 14
ONE = 2**FRACTION_BITS
AHEAD = 32 * ONE  # a weight is at most this far above that of one use now: 2^32 uses


def weights_added(one: int, other: int) -> int:
    """Returns the sum of two weights, rounded to 14 bits of fraction."""
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
    """Returns the weight of `n` uses of weight `one`.

    >>> weight_times(ONE, 3) == weights_added(weights_added(ONE, ONE), ONE)
    True
    """
    return int(weights_times(one, torch.tensor(n)))


def weights_times(one: int, n: Int64[Tensor, "n"]) -> Int64[Tensor, "n"]:
    """Returns the weight of `n` uses of weight `one`, for each `n`. It is 0 where `n` is 0."""
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
    """Returns the number of bits of each number. Exact below 2^53."""
    return torch.frexp(numbers.double()).exponent.long()
