"""The weight of all uses of a row, as the core and the kernels add it up: see `csrc/evict.h`.

A float of 31 bits: an exponent of 17, which starts anew behind its end, over a fraction of 14.
"""

from __future__ import annotations

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
