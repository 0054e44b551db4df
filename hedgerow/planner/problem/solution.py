"""What the solver answers: a choice with its proof, or why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from ...core.errors import HedgerowError


@dataclass(frozen=True, slots=True)
class Prices:
    """What one more byte of each memory on every rank would save, in milliseconds a step."""

    hbm_ms_per_byte: float = 0.0
    ddr_ms_per_byte: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """One option a table, by its place in the table's list.

    `status` is "optimal", "time_limit" (the best so far; `gap` is proven) or "empty" (no tables).
    """

    status: str
    choice: tuple[int, ...]
    ms: float
    hbm: int  # bytes of a device
    ddr: int  # bytes of a rank
    lower_bound_ms: float
    gap: float  # (ms - lower bound) / ms
    seconds: float
    prices: Prices


@dataclass(frozen=True, slots=True)
class Shortfall:
    """One memory that does not suffice. None: no amount helps while the other is in its budget.

    `alone` is what any plan needs if the other memory were endless, `joint` with the other one
    kept within its budget. Bytes of a device (HBM) or of a rank (host).
    """

    memory: str  # "hbm" or "ddr"
    budget: Fraction
    least_alone: int
    least_joint: int | None

    @property
    def short_alone(self) -> Fraction:
        """Bytes missing even with the other memory endless."""
        return max(Fraction(0), self.least_alone - self.budget)

    @property
    def short_joint(self) -> Fraction | None:
        """Bytes missing with the other memory as it is."""
        if self.least_joint is None:
            return None
        return max(Fraction(0), self.least_joint - self.budget)


class PlanError(HedgerowError, ValueError):
    """No plan: `kind` is "infeasible", "no_options" or "time_limit" (it was not settled).

    The rest says what is missing, exactly.
    """

    def __init__(
        self,
        text: str,
        *,
        kind: str = "infeasible",
        shortfalls: Sequence[Shortfall] = (),
        never_fit: Sequence[str] = (),
        hints: Sequence[str] = (),
    ) -> None:
        super().__init__(text)
        self.kind = kind
        self.shortfalls = tuple(shortfalls)
        self.never_fit = tuple(never_fit)
        self.hints = tuple(hints)
