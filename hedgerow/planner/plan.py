"""A plan: the placement of each table, the proof of optimality, and the inputs it was made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ..core import checks
from ..core.errors import ConfigError
from ..core.files import local_path
from .problem.options import FACTORS, Mode, Option, TableOptions, Variant
from .problem.table_spec import TableSpec
from .problem.topology import Budget, Reserve, Topology

if TYPE_CHECKING:
    from .compare import PlanCheck, PlanDiff
    from .verify import Observed, Verification


SHARDINGS = ("row_wise", "table_wise", "copy")


@dataclass(frozen=True, slots=True)
class Forecast:
    """Predicted time of a table per step, and the share of its distinct keys found in HBM."""

    ms: float
    hit_rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """The placement of one table. `hbm_bytes` are per device, `ddr_bytes` per rank.

    `sharding` is "row_wise" (every rank has a part of the rows), "table_wise" (all rows are on
    `rank`) or "copy" (every rank has all rows). `extra` holds fields of the file that this version
    does not know.

    >>> from .problem.options import HOST_ONLY
    >>> placed = Placed(name="item", variant=HOST_ONLY, dist_type="roundrobin", rows_per_rank=10,
    ...     row_bytes=64, hbm_bytes=0, ddr_bytes=640, forecast=Forecast(0.5, 0.0))
    >>> placed.mode, placed.load_factor, placed.sharding
    (<Mode.HOST_ONLY: 'HOST_ONLY'>, '0', 'row_wise')
    """

    name: str
    variant: Variant
    dist_type: str
    rows_per_rank: int
    row_bytes: int
    hbm_bytes: int
    ddr_bytes: int
    forecast: Forecast
    sharding: str = "row_wise"
    rank: int | None = None
    group: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def mode(self) -> Mode:
        """The mode of the variant."""
        return self.variant.mode

    @property
    def load_factor(self) -> str:
        """The load factor of the variant: the share of rows in HBM."""
        return self.variant.load_factor


@dataclass(frozen=True, slots=True)
class WeighedOption:
    """One option of a table with its predicted time and hit rate.

    `refused` is empty, or the reason why the option cannot be chosen.
    """

    label: str
    hbm: int
    ddr: int
    ms: float
    hit_rate: float
    refused: str = ""

    @property
    def option(self) -> Option:
        """Returns the option as the solver takes it."""
        return Option(self.label, self.hbm, self.ddr, self.ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """Settings of `plan` besides tables and machines.

    `batch` is the number of samples per rank and step. `thrashing` allows caches that are smaller
    than what one step needs.
    """

    batch: int
    layout: str = "hedgerow"
    factors: Sequence[str] = FACTORS
    thrashing: bool = False
    time_limit: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInputs:
    """The tables of a plan in order, and the options of each.

    `stats_digests` are hashes of the key samples of tables that have them. A file stores only the
    hashes, so a loaded plan has no samples. `zipf_ms` is the plan's time by Zipf exponent of the
    tables without samples.
    """

    specs: tuple[TableSpec, ...]
    settings: PlanSettings
    choices: Mapping[str, tuple[WeighedOption, ...]]
    stats_digests: Mapping[str, str] = field(default_factory=dict)
    zipf_ms: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def by_name(self) -> dict[str, TableSpec]:
        """The tables by name."""
        return {spec.name: spec for spec in self.specs}

    @property
    def lacks_samples(self) -> tuple[str, ...]:
        """Names of the tables whose samples were not stored in the file."""
        specs = self.by_name
        return tuple(name for name in self.stats_digests if specs[name].stats is None)

    def options(self, pin: Mapping[str, str] | None = None) -> list[TableOptions]:
        """Returns the options for the solver. `pin` restricts a table to one mode or one label."""
        pinned = dict(pin or {})
        found = []
        for spec in self.specs:
            kept = [c for c in self.choices[spec.name] if fits_pin(c, pinned.get(spec.name))]
            found.append(TableOptions(spec.name, tuple(choice.option for choice in kept)))
        return found


def fits_pin(choice: WeighedOption, pin: str | None) -> bool:
    """Returns whether an option is usable and has the pinned mode or label, such as CACHING@0.1."""
    if choice.refused:
        return False
    return pin is None or pin in (choice.label, choice.label.partition("@")[0])


def check_pins(inputs: PlanInputs, pin: Mapping[str, str]) -> None:
    """Raises unless every pinned table exists and has an option that matches the pin."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """How a plan was found. A price is the milliseconds per step that one more GiB would save.

    Comparing plans ignores `seconds`, because equal inputs give equal plans but not equal run
    times.
    """

    status: str
    lower_bound_ms: float
    total_ms: float
    gap: float
    hbm_ms_per_gib: float  # one GiB more on every device
    ddr_ms_per_gib_machine: float  # one GiB more on every machine
    seconds: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usable:
    """Memory available to tables, of the smallest device and of the tightest machine."""

    hbm_per_device: int
    ddr_per_machine: int
    reserve: Reserve


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The placement of every table. `save` writes it as JSON; `load` reads it and needs no solver.

    `calibration` describes the device and parameters that the times are based on. `inputs` is None
    if the file stores only decisions. `extra` holds fields of the file that this version does not
    know.

    >>> from hedgerow.planner import TableSpec, plan
    >>> machine = Topology(world=2, ddr_per_machine=2**33, device="cpu")
    >>> made = plan([TableSpec(name="item", rows=1000, dim=8)], machine)
    >>> made.names, made.of("item").mode.value, made.what_if(ddr=2**34).diff(made).moved_bytes
    (('item',), 'HOST_ONLY', 0)
    """

    fingerprint: str
    topology: Topology
    budget: Usable
    solver: Solved
    calibration: Mapping[str, Any]
    tables: tuple[Placed, ...]
    inputs: PlanInputs | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tables, in the order of the plan."""
        return tuple(table.name for table in self.tables)

    def of(self, name: str) -> Placed:
        """Returns the placement of the table `name`."""
        for table in self.tables:
            if table.name == name:
                return table
        return checks.unknown("table", name, self.names)

    @property
    def limits(self) -> Budget:
        """Memory that the shards of one rank may use."""
        return self.budget.reserve.of(self.topology).budget()

    @property
    def hbm_bytes(self) -> int:
        """HBM bytes of the fullest device."""
        return max(load.hbm for load in self.loads())

    @property
    def ddr_bytes(self) -> int:
        """Host bytes of the fullest rank."""
        return max(load.ddr for load in self.loads())

    def loads(self) -> tuple[Load, ...]:
        """Returns the load of every rank, in rank order."""
        shared = [t for t in self.tables if t.rank is None]
        base = _load(shared)
        if len(shared) == len(self.tables):
            return (base,) * self.topology.world
        own: dict[int, list[Placed]] = {}
        for table in self.tables:
            if table.rank is not None:
                own.setdefault(table.rank, []).append(table)
        return tuple(base + _load(own.get(rank, ())) for rank in range(self.topology.world))

    def save(self, path: str | Path) -> None:
        """Writes the plan as a JSON file. The file is replaced atomically."""
        from .plan_file import write_plan

        write_plan(self, local_path(path))

    @staticmethod
    def load(path: str | Path) -> Plan:
        """Reads a plan. Raises if the file is damaged or written by a newer version."""
        from .plan_file import read_plan

        return read_plan(local_path(path))

    def to_dict(self) -> dict[str, Any]:
        """Returns the plan as the dict that its file holds."""
        from .plan_file import plan_dict

        return plan_dict(self)

    def table(self) -> str:
        """Returns the report as text: a line per table, memory prices, and other memory sizes."""
        from .report import report_text

        return report_text(self)

    def explain(self, name: str) -> str:
        """Returns all options of a table and the reason why each one was not chosen."""
        from .explain import explain_text

        return explain_text(self, name)

    def html(self, path: str | Path) -> None:
        """Writes the report as one HTML file without scripts or network access."""
        from .report_page import write_html

        write_html(self, local_path(path))

    def png(self, path: str | Path) -> None:
        """Draws the placement, the times, and the effect of other memory sizes to a PNG file."""
        from .report_page import draw_plan

        draw_plan(self, local_path(path))

    def check(self, tables: Sequence[TableSpec], *, accept_drift: bool = False) -> PlanCheck:
        """Raises `PlanMismatchError` unless `tables` are those of the plan.

        The message names differences.

        With `accept_drift`, row counts may differ as long as the tables fit when the reserve is
        used up.
        """
        from .compare import check_tables

        return check_tables(self, tables, accept_drift=accept_drift)

    def diff(self, other: Plan) -> PlanDiff:
        """Returns what `other` changes, and the bytes that must move for it."""
        from .compare import diff_plans

        return diff_plans(self, other)

    def what_if(
        self,
        *,
        hbm: int | None = None,
        ddr: int | None = None,
        world: int | None = None,
        batch: int | None = None,
        pin: Mapping[str, str] | None = None,
    ) -> Plan:
        """Returns the plan for other machines or restricted choices. The reserve is unchanged.

        `hbm` is bytes per device and `ddr` bytes per machine, as in Topology. `pin` maps a table to
        the mode ("CACHING") or option ("CACHING@0.1") that it must take.
        """
        from .explain import what_if

        return what_if(self, hbm=hbm, ddr=ddr, world=world, batch=batch, pin=pin)

    def verify(self, observed: Mapping[str, Observed]) -> Verification:
        """Compares measured times with the predicted ones, and says whether planning again pays."""
        from .verify import verify

        return verify(self, observed)


@dataclass(frozen=True, slots=True)
class Load:
    """Bytes and time of one rank under a plan."""

    hbm: int
    ddr: int
    ms: float

    def __add__(self, other: Load) -> Load:
        return Load(self.hbm + other.hbm, self.ddr + other.ddr, self.ms + other.ms)


def _load(tables: Sequence[Placed]) -> Load:
    hbm, ddr = sum(t.hbm_bytes for t in tables), sum(t.ddr_bytes for t in tables)
    return Load(hbm, ddr, sum(t.forecast.ms for t in tables))
