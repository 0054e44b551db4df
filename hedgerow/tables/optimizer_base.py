"""What an optimizer tells the table: its update rule, settings, states and rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..core.records import Record
from .schedules import Polynomial, Rate


@dataclass(frozen=True, slots=True)
class State:
    """One state of a row: a float beside every value, or one number for the segment."""

    name: str
    initial: float = 0.0
    per: Literal["value", "row"] = "value"
    dtype: Literal["float32", "int64"] = "float32"
    least: float | None = None  # no update makes it smaller: a saved value below is damaged

    def floats(self, dim: int) -> int:
        """Room it takes behind a segment of `dim`, in floats; an int64 takes two."""
        return dim if self.per == "value" else (2 if self.dtype == "int64" else 1)


@dataclass(frozen=True, slots=True)
class Rule:
    """An update rule of the native core: its settings and states, in the core's order."""

    name: str
    settings: tuple[float, ...] = ()
    states: tuple[State, ...] = ()


class Optimizer(Record):
    """Base of every row optimizer."""

    def rule(self) -> Rule:
        """How the core runs it."""
        raise NotImplementedError

    def rate(self) -> Rate:
        """Its own rate, used when a call gives none."""
        raise NotImplementedError

    @property
    def follows_step(self) -> bool:
        """Whether an update cannot do without its step, whatever its rate."""
        return False

    def check_dim(self, dim: int) -> None:
        """Raises if it cannot serve a segment of `dim`."""


def warmed_up(learning_rate: float, warmup_steps: int) -> Rate:
    """`learning_rate`, reached along a straight line from 0 over `warmup_steps`."""
    if warmup_steps == 0:
        return learning_rate
    return Polynomial(initial=0.0, decay_steps=warmup_steps, end=learning_rate)
