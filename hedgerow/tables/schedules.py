"""Learning rates: a number, a schedule, or any function of the step."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from ..core import checks
from ..core.errors import ConfigError
from ..core.records import Record


class Schedule(Record):
    """A rate that follows the step, comparable and writable to a file."""

    def __call__(self, step: int) -> float:
        """The rate at `step`, counted before the step is taken."""
        raise NotImplementedError


@dataclass(frozen=True)
class Polynomial(Schedule):
    """From `initial` to `end` in `decay_steps`; it may fall or rise.

    With `cycle` the whole is stretched to the next multiple of `decay_steps` instead of ending.

    >>> warmup = Polynomial(initial=0.0, decay_steps=20, end=0.05)
    >>> warmup(0), round(warmup(10), 9), warmup(25)
    (0.0, 0.025, 0.05)
    """

    kind = "polynomial"
    initial: float
    decay_steps: int
    end: float = 1e-4
    power: float = 1.0
    cycle: bool = False

    def __post_init__(self) -> None:
        checks.setting("Polynomial", "initial", self.initial, least=0)
        checks.whole("Polynomial", "decay_steps", self.decay_steps, least=1)
        checks.setting("Polynomial", "end", self.end, least=0)
        checks.setting("Polynomial", "power", self.power, above=0)
        checks.switch("Polynomial", "cycle", self.cycle)

    def __call__(self, step: int) -> float:
        """The rate at `step`."""
        span = self.decay_steps
        if self.cycle:
            span *= max(1, math.ceil(step / self.decay_steps))
        left = 1 - min(step, span) / span
        return (self.initial - self.end) * left**self.power + self.end


Rate = float | Schedule | Callable[[int], float]


def check_rate(owner: str, name: str, rate: Rate) -> None:
    """Refuses what can never be a rate; a callable is checked each time it is asked."""
    if callable(rate):
        return
    if isinstance(rate, bool) or not isinstance(rate, numbers.Real):
        raise ConfigError(f"{owner}.{name} is {rate!r}; it must be a number, schedule or callable.")
    checks.setting(owner, name, rate, least=0)  # pyright: ignore[reportArgumentType]


def rate_at(rate: Rate, step: int) -> float:
    """The rate at `step`, whatever its source; never negative, never NaN.

    >>> rate_at(0.1, 7), rate_at(lambda step: 1 / (1 + step), 4)
    (0.1, 0.2)
    """
    now = rate(step) if callable(rate) else rate
    if isinstance(now, Tensor) and now.numel() == 1:
        now = now.item()
    return checks.rate(f"the rate at step {step}", now)


def check_rates(rates: Sequence[Rate], segments: int) -> tuple[Rate, ...]:
    """One source a segment, or an error that states both numbers."""
    if isinstance(rates, str) or not isinstance(rates, Sequence):
        raise ConfigError(f"rates is {rates!r}; give a list with one rate a segment, in order.")
    if len(rates) != segments:
        raise ConfigError(
            f"{len(rates)} rates for {segments} segments; give one rate a segment, in order."
        )
    for i, rate in enumerate(rates):
        check_rate("rates", str(i), rate)
    return tuple(rates)
