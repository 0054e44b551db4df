"""The ways in which a table can be stored, as the solver sees them, and the solver's answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from ...core.errors import ConfigError, HedgerowError


class Mode(StrEnum):
    """Where rows live. CACHING keeps all of them on the host, and copies of some in HBM."""

    HBM_ONLY = "HBM_ONLY"
    HYBRID = "HYBRID"
    CACHING = "CACHING"
    HOST_ONLY = "HOST_ONLY"


FACTORS = ("0.02", "0.05", "0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8", "0.9")
"""Shares in HBM that HYBRID and CACHING are tried with, unless the caller gives others."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to keep a table; frozen, so that no two of them share anything that can change.

    `load_factor` is a decimal string, exact and as people write it: the share of rows in HBM.

    >>> Variant(Mode.CACHING, "0.1").label, Variant(Mode.CACHING, "0.1").share
    ('CACHING@0.1', Fraction(1, 10))
    """

    mode: Mode
    load_factor: str

    @property
    def label(self) -> str:
        """As plans and reports name it."""
        return f"{self.mode}@{self.load_factor}"

    @property
    def share(self) -> Fraction:
        """The load factor, exactly."""
        return Fraction(self.load_factor)


HBM_ONLY = Variant(Mode.HBM_ONLY, "1.0")
HOST_ONLY = Variant(Mode.HOST_ONLY, "0")


def variants(
    factors: Sequence[str] = FACTORS,
    *,
    device: str = "cuda",
    fixed: str | None = None,
    modes: Iterable[Mode | str] | None = None,
) -> tuple[Variant, ...]:
    """All ways to keep a table: HBM_ONLY, HYBRID and CACHING at each factor, HOST_ONLY.

    A `fixed` factor leaves one of the ends, or both modes at it; `modes` restricts. Without cards
    there is one way.

    >>> len(variants()), [v.label for v in variants(fixed="0.3")]
    (24, ['HYBRID@0.3', 'CACHING@0.3'])
    >>> [v.label for v in variants(device="cpu")]
    ['HOST_ONLY@0']
    """
    if device == "cpu":
        return (HOST_ONLY,)
    allowed = None if modes is None else {_mode(mode) for mode in modes}
    found = _of_factor(fixed) if fixed is not None else _all(factors)
    kept = tuple(v for v in found if allowed is None or v.mode in allowed)
    if not kept:
        raise ConfigError(
            f"modes is {sorted(allowed or ())} and load_factor {fixed!r}: no variant is left; "
            f"a factor of 0 is HOST_ONLY, 1 is HBM_ONLY, others are HYBRID and CACHING."
        )
    return kept


def _all(factors: Sequence[str]) -> tuple[Variant, ...]:
    inner = [_inner(factor) for factor in factors]
    return (
        HBM_ONLY,
        *(Variant(mode, factor) for mode in (Mode.HYBRID, Mode.CACHING) for factor in inner),
        HOST_ONLY,
    )


def _of_factor(fixed: str) -> tuple[Variant, ...]:
    share = share_of(fixed)
    if share in (0, 1):
        return (HBM_ONLY if share else HOST_ONLY,)
    return (Variant(Mode.HYBRID, fixed), Variant(Mode.CACHING, fixed))


def share_of(factor: str) -> Fraction:
    """A load factor, checked and exact."""
    try:
        share = Fraction(factor)
    except (ValueError, ZeroDivisionError, TypeError):
        share = Fraction(-1)
    if not 0 <= share <= 1 or not isinstance(factor, str):
        raise ConfigError(f'load_factor is {factor!r}; give a decimal string from "0" to "1".')
    return share


def _inner(factor: str) -> str:
    if not 0 < share_of(factor) < 1:
        raise ConfigError(
            f"factors has {factor!r}; HYBRID and CACHING take a share between 0 and 1, and the "
            f"ends are HOST_ONLY and HBM_ONLY."
        )
    return factor


def _mode(name: Mode | str) -> Mode:
    if name not in list(Mode):
        raise ConfigError(f"mode is {name!r}; choose from {', '.join(Mode)}.")
    return Mode(name)


@dataclass(frozen=True, slots=True)
class Option:
    """One way to keep a table. `hbm` is bytes of a device, `ddr` of a rank, `ms` a step's time."""

    label: str
    hbm: int
    ddr: int
    ms: float


@dataclass(frozen=True, slots=True)
class TableOptions:
    """A table, and all options that it may take, in the order that breaks the last ties."""

    name: str
    options: tuple[Option, ...]


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
