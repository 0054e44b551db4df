"""What the programs of a writing kernel count together."""

from __future__ import annotations

from .toolchain import jit, tl


@jit
def count_up(
    counts: tl.tensor, inserted: tl.tensor, refused: tl.tensor, dropped: tl.tensor
) -> None:
    """Adds to the counts of `Applied`; programs with nothing to say do not queue for them."""
    inserted, refused = inserted.to(tl.int64), refused.to(tl.int64)
    born, kept_out, left_out = tl.sum(inserted), tl.sum(refused), tl.sum(dropped)
    if born + kept_out + left_out > 0:
        tl.atomic_add(counts, born, sem="relaxed")
        tl.atomic_add(counts + 1, kept_out, sem="relaxed")
        tl.atomic_add(counts + 2, left_out, sem="relaxed")
