"""What rows are scored by: those with small scores leave a full table first.

A word of scores holds the score in 48 bits and, above them, the number of the call that set it, so
that a call does not throw out what it has just put in. A score of mode "assign" is what the caller
says: the time, a step, anything. A score of mode "use" is the weight of all uses of the row, as in
`csrc/evict.h`: a float of 31 bits whose exponent starts anew behind its end, so it is compared by
how far it lies behind `top`, the largest that there can be.
"""

from __future__ import annotations

from . import layout
from .toolchain import jit, tl

SCORE = tl.constexpr(layout.SCORE)
MARK = tl.constexpr(layout.MARK)
FRACTION = tl.constexpr(layout.FRACTION)  # bits of a weight
ONE = tl.constexpr(2**layout.FRACTION)
AHEAD = tl.constexpr(layout.AHEAD)


@jit
def worth(words: tl.tensor, top: tl.tensor, MODE: tl.constexpr) -> tl.tensor:
    """What words of scores are worth; smaller ones leave first."""
    score = words & SCORE
    if MODE == "use":
        score = tl.where(score == 0, 0, (score - top - 1) & MARK)
    else:
        tl.static_assert(MODE == "assign")
    return score


@jit
def weights_added(one: tl.tensor, other: tl.tensor) -> tl.tensor:
    """The weight of the uses of both."""
    ahead = ((one - other) & MARK) <= AHEAD
    larger, smaller = tl.where(ahead, one, other), tl.where(ahead, other, one)
    apart = ((larger >> FRACTION) - (smaller >> FRACTION)) & (MARK >> FRACTION)
    apart = tl.minimum(apart, FRACTION + 2)  # then nothing is left of the smaller
    half = (tl.full(one.shape, 1, tl.int64) << apart) >> 1
    total = ONE + (larger & (ONE - 1)) + ((ONE + (smaller & (ONE - 1)) + half) >> apart)
    carry = total >= 2 * ONE
    total = tl.where(carry, (total + 1) >> 1, total)
    exponent = (larger >> FRACTION) + carry.to(tl.int64)
    added = tl.maximum(((exponent << FRACTION) | (total & (ONE - 1))) & MARK, 1)
    return tl.where((one == 0) | (other == 0), one | other, added)


@jit
def scored(words: tl.tensor, given: tl.tensor, MODE: tl.constexpr) -> tl.tensor:
    """The scores, without a call's number, of rows that had these words and are used once more.

    Those of a new row come from a word of 0. In mode "use", `given` is the weight of a use now, or
    0 where the write is none.
    """
    if MODE == "use":
        return weights_added(words & SCORE, given & MARK)
    else:  # noqa: RET505 (Triton wants both arms)
        tl.static_assert(MODE == "assign")
        return given & SCORE
