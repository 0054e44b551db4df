"""What the solver sees of a table: its options, each with bytes of two memories and a time."""

from __future__ import annotations

from dataclasses import dataclass


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
