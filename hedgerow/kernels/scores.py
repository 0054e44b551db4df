"""What rows are scored by: those with small scores leave a full table first.

A word of scores holds the score in 48 bits and, above them, the number of the call that set it, so
that a call does not throw out what it has just put in. A score of mode "assign" is what the caller
says: the time, a step, anything. A score of mode "count" is how often the row was used, in 32 bits,
under the epoch of the last use: it counts for half as much with every epoch that has passed since.
Epochs have 16 bits and begin anew behind the last one.
"""

from __future__ import annotations

from . import layout
from .toolchain import jit, tl

SCORE = tl.constexpr(layout.SCORE)
COUNT = tl.constexpr(2**32 - 1)
EPOCH = tl.constexpr(layout.EPOCH)


@jit
def worth(words: tl.tensor, epoch: tl.tensor, MODE: tl.constexpr) -> tl.tensor:
    """What words of scores are worth in this epoch; smaller ones leave first."""
    score = words & SCORE
    if MODE == "count":
        age = tl.minimum((epoch - (score >> 32)) & EPOCH, 32)
        score = (score & COUNT) >> age
    else:
        tl.static_assert(MODE == "assign")
    return score


@jit
def scored(words: tl.tensor, given: tl.tensor, epoch: tl.tensor, MODE: tl.constexpr) -> tl.tensor:
    """The scores, without a call's number, of rows that had these words and are used once more.

    Those of a new row come from a word of 0.
    """
    if MODE == "count":
        count = tl.minimum(worth(words, epoch, MODE) + given, COUNT)
        return count | ((epoch & EPOCH) << 32)
    else:  # noqa: RET505 (Triton wants both arms)
        tl.static_assert(MODE == "assign")
        return given & SCORE
