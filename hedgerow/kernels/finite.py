"""Which rows of a block hold nothing but finite numbers."""

from __future__ import annotations

from .toolchain import jit, tl


@jit
def all_finite(rows: tl.tensor) -> tl.tensor:
    """Whether each row is finite."""
    return tl.min((tl.abs(rows) < float("inf")).to(tl.int32), axis=1) > 0
