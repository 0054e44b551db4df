"""What a plan was made from: the tables, how they are read, and every option that was weighed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from ..core.errors import ConfigError
from .problem.option import Option, TableOptions
from .problem.table_spec import TableSpec
from .problem.variant import FACTORS, Mode


@dataclass(frozen=True, slots=True)
class Choice:
    """One option with the hit rate that its time rests on; `refused` says why it is none."""

    label: str
    hbm: int
    ddr: int
    ms: float
    hit_rate: float
    refused: str = ""

    @property
    def option(self) -> Option:
        """As the solver takes it."""
        return Option(self.label, self.hbm, self.ddr, self.ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """What the caller of `plan` said beside tables and machines.

    `batch` is samples of a rank and step. `thrashing` allows caches that are smaller than what one
    step touches.
    """

    batch: int
    layout: str = "hedgerow"
    factors: Sequence[str] = FACTORS
    thrashing: bool = False
    time_limit: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInputs:
    """Tables in the order of the plan, and the options of each.

    `stats_digests` are of the samples of tables that have some: a file keeps no samples, so a plan
    that was read has digests where one that was made has the samples, too. `zipf_ms` is the time
    of the plan if keys of tables without samples follow another power law.
    """

    specs: tuple[TableSpec, ...]
    settings: PlanSettings
    choices: Mapping[str, tuple[Choice, ...]]
    stats_digests: Mapping[str, str] = field(default_factory=dict)
    zipf_ms: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def by_name(self) -> dict[str, TableSpec]:
        """Every table under its name."""
        return {spec.name: spec for spec in self.specs}

    @property
    def lacks_samples(self) -> tuple[str, ...]:
        """Tables whose samples are not here any more."""
        specs = self.by_name
        return tuple(name for name in self.stats_digests if specs[name].stats is None)

    def options(self, pin: Mapping[str, str] | None = None) -> list[TableOptions]:
        """What the solver chooses from; `pin` leaves a table the options of one mode or label."""
        pinned = dict(pin or {})
        found = []
        for spec in self.specs:
            kept = [c for c in self.choices[spec.name] if fits_pin(c, pinned.get(spec.name))]
            found.append(TableOptions(spec.name, tuple(choice.option for choice in kept)))
        return found


def fits_pin(choice: Choice, pin: str | None) -> bool:
    """Whether an option is of the mode that a table is pinned to, or the very one: CACHING@0.1."""
    if choice.refused:
        return False
    return pin is None or pin in (choice.label, choice.label.partition("@")[0])


def check_pins(inputs: PlanInputs, pin: Mapping[str, str]) -> None:
    """Every pinned table is there, and has an option of that mode."""
    for name, mode in pin.items():
        choices = inputs.choices.get(name)
        if choices is None:
            raise ConfigError(
                f"pin of table {name!r}, which is not in the plan; known: "
                f"{', '.join(inputs.choices)}."
            )
        if not any(fits_pin(choice, mode) for choice in choices):
            _refuse_pin(inputs, name, mode)


def _refuse_pin(inputs: PlanInputs, name: str, mode: str) -> NoReturn:
    choices = inputs.choices[name]
    labels = [c.label for c in choices if not c.refused]
    for choice in choices:
        if choice.refused and mode in (choice.label, choice.label.partition("@")[0]):
            raise ConfigError(f"pin of {name} to {mode}: {choice.refused}.")
    raise ConfigError(
        f"pin of {name} to {mode!r}; give a mode ({', '.join(Mode)}) or one of {', '.join(labels)}."
    )
