"""The options for storing a table, as the solver takes them, and the solver's answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from ...core.errors import ConfigError, HedgerowError


class Mode(StrEnum):
    """Where rows live. CACHING keeps all rows on the host and copies of some in HBM."""

    HBM_ONLY = "HBM_ONLY"
    HYBRID = "HYBRID"
    CACHING = "CACHING"
    HOST_ONLY = "HOST_ONLY"


FACTORS = ("0.02", "0.05", "0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8", "0.9")
"""Default shares of rows in HBM that are tried for HYBRID and CACHING."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A mode and load factor of a table.

    `load_factor` is the share of rows in HBM as a decimal string, so that it is exact.

    >>> Variant(Mode.CACHING, "0.1").label, Variant(Mode.CACHING, "0.1").share
    ('CACHING@0.1', Fraction(1, 10))
    """

    mode: Mode
    load_factor: str

    @property
    def label(self) -> str:
        """The name of the variant in plans and reports."""
        return f"{self.mode}@{self.load_factor}"

    @property
    def share(self) -> Fraction:
        """The load factor as an exact fraction."""
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
    """Returns the variants of a table: HBM_ONLY, HYBRID and CACHING at each factor, HOST_ONLY.

    A `fixed` factor of 0 or 1 leaves one variant; other factors leave HYBRID and CACHING. `modes`
    restricts the modes. On the CPU the only variant is HOST_ONLY.

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
    """Returns a load factor as a fraction. Raises unless it is a string from "0" to "1"."""
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
    """One option of a table: `hbm` bytes per device, `ddr` bytes per rank, `ms` per step."""

    label: str
    hbm: int
    ddr: int
    ms: float


@dataclass(frozen=True, slots=True)
class TableOptions:
    """A table and its options. The order of options breaks remaining ties."""

    name: str
    options: tuple[Option, ...]


@dataclass(frozen=True, slots=True)
class Prices:
    """The milliseconds per step that one more byte of each memory on every rank would save."""

    hbm_ms_per_byte: float = 0.0
    ddr_ms_per_byte: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """The solver's answer: for each table the index of its option.

    `status` is "optimal", "time_limit" (the best choice found; `gap` is proven) or "empty" (no
    tables).
    """

    status: str
    choice: tuple[int, ...]
    ms: float
    hbm: int  # per device
    ddr: int  # per rank
    lower_bound_ms: float
    gap: float  # (ms - lower bound) / ms
    seconds: float
    prices: Prices


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A memory that is too small.

    `least_alone` is the smallest amount that any plan needs if the other memory were unlimited.
    `least_joint` is the amount with the other memory within its budget, or None if no amount helps.
    Bytes are per device (HBM) or per rank (host).
    """

    memory: str  # "hbm" or "ddr"
    budget: Fraction
    least_alone: int
    least_joint: int | None

    @property
    def short_alone(self) -> Fraction:
        """Missing bytes if the other memory were unlimited."""
        return max(Fraction(0), self.least_alone - self.budget)

    @property
    def short_joint(self) -> Fraction | None:
        """Missing bytes with the other memory within its budget."""
        if self.least_joint is None:
            return None
        return max(Fraction(0), self.least_joint - self.budget)


class PlanError(HedgerowError, ValueError):
    """No plan was found. `kind` is "infeasible", "no_options" or "time_limit" (undecided).

    The other fields say exactly what is missing.
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
