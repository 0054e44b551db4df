"""The ways in which one table may be kept: a mode, and how much of it lies in HBM."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from ...core.errors import ConfigError


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
