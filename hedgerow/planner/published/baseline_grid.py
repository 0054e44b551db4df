"""The variants of the published planner: both of its modes at ten factors."""

from __future__ import annotations

from ..problem.variant import HOST_ONLY, Mode, Variant, share_of

TENTHS = ("0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8", "0.9", "1.0")


def baseline_grid(fixed: str | None = None, *, device: str = "cuda") -> tuple[Variant, ...]:
    """HYBRID first, factors ascending; a `fixed` factor leaves two. Without cards there is one.

    >>> len(baseline_grid()), [v.label for v in baseline_grid("0.3")]
    (20, ['HYBRID@0.3', 'CACHING@0.3'])
    """
    if device == "cpu":
        return (HOST_ONLY,)
    factors = TENTHS if fixed is None else (fixed,)
    for factor in factors:
        share_of(factor)
    modes = (Mode.HYBRID, Mode.CACHING)
    return tuple(Variant(mode, factor) for mode in modes for factor in factors)
