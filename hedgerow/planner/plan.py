"""A plan: where each table lives on which machines, its proof, and what it was made from."""

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
    """What a table should cost a step, and the share of distinct keys found in HBM."""

    ms: float
    hit_rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A line of a plan. `hbm_bytes` are of a device, `ddr_bytes` of a rank, for its shard.

    `sharding` is "row_wise" (every rank has rows), "table_wise" (all on `rank`) or "copy" (every
    rank has all). `extra` are fields of the file that this version does not know.

    >>> from .problem.variant import HOST_ONLY
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
        """Of its variant."""
        return self.variant.mode

    @property
    def load_factor(self) -> str:
        """Of its variant: the share of rows in HBM."""
        return self.variant.load_factor


@dataclass(frozen=True, slots=True)
class WeighedOption:
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
    choices: Mapping[str, tuple[WeighedOption, ...]]
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


def fits_pin(choice: WeighedOption, pin: str | None) -> bool:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """How a plan was found. Prices are milliseconds a step that one more GiB saves.

    Plans are compared without `seconds`: the same input gives the same plan, not the same wait.
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
    """What tables may take of the smallest device and of the machine that binds, and what not."""

    hbm_per_device: int
    ddr_per_machine: int
    reserve: Reserve


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Where every table lives. Reading one needs no solver; `save` and `load` are of JSON.

    `calibration` is {"parameters", "device"} of the one that times rest on. `inputs` is None for a
    file that holds decisions alone. `extra` are fields of a file that this version does not know,
    where they stood.

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
        """Of the tables, in the order of the plan."""
        return tuple(table.name for table in self.tables)

    def of(self, name: str) -> Placed:
        """The line of one table."""
        for table in self.tables:
            if table.name == name:
                return table
        return checks.unknown("table", name, self.names)

    @property
    def limits(self) -> Budget:
        """What the shards of one rank may take, exactly."""
        return self.budget.reserve.of(self.topology).budget()

    @property
    def hbm_bytes(self) -> int:
        """Of the fullest device."""
        return max(load.hbm for load in self.loads())

    @property
    def ddr_bytes(self) -> int:
        """Of the fullest rank."""
        return max(load.ddr for load in self.loads())

    def loads(self) -> tuple[Load, ...]:
        """What every rank carries, in the order of ranks."""
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
        """Writes the plan as JSON, whole or not at all."""
        from .plan_file import write_plan

        write_plan(self, local_path(path))

    @staticmethod
    def load(path: str | Path) -> Plan:
        """The plan of a file; a damaged one, or one of a newer version, is refused."""
        from .plan_file import read_plan

        return read_plan(local_path(path))

    def to_dict(self) -> dict[str, Any]:
        """As the file has it."""
        from .plan_file import plan_dict

        return plan_dict(self)

    def table(self) -> str:
        """The report as text: one line a table, what memory is worth, what if."""
        from .report import report_text

        return report_text(self)

    def explain(self, name: str) -> str:
        """All options of a table, and why each of the others lost."""
        from .explain import explain_text

        return explain_text(self, name)

    def html(self, path: str | Path) -> None:
        """Writes the report as one HTML file that needs no network and no scripts."""
        from .report_page import write_html

        write_html(self, local_path(path))

    def png(self, path: str | Path) -> None:
        """Draws where tables live, what they cost, and what other memory would change."""
        from .report_page import draw_plan

        draw_plan(self, local_path(path))

    def check(self, tables: Sequence[TableSpec], *, accept_drift: bool = False) -> PlanCheck:
        """Refuses tables other than the plan's, and names what differs.

        With `accept_drift`, other row counts are fine as long as they fit into the reserve.
        """
        from .compare import check_tables

        return check_tables(self, tables, accept_drift=accept_drift)

    def diff(self, other: Plan) -> PlanDiff:
        """What `other` changes, and the bytes that must move for it."""
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
        """The plan for other machines or a smaller choice; the reserve stays as it is.

        `hbm` are bytes of a device and `ddr` of a machine, as in Topology; `pin` are tables with
        the mode ("CACHING") or the one option ("CACHING@0.1") that they must take.
        """
        from .explain import what_if

        return what_if(self, hbm=hbm, ddr=ddr, world=world, batch=batch, pin=pin)

    def verify(self, observed: Mapping[str, Observed]) -> Verification:
        """What was measured, beside what the plan had said; and whether to plan again."""
        from .verify import verify

        return verify(self, observed)


@dataclass(frozen=True, slots=True)
class Load:
    """What one rank carries of a plan."""

    hbm: int
    ddr: int
    ms: float

    def __add__(self, other: Load) -> Load:
        return Load(self.hbm + other.hbm, self.ddr + other.ddr, self.ms + other.ms)


def _load(tables: Sequence[Placed]) -> Load:
    hbm, ddr = sum(t.hbm_bytes for t in tables), sum(t.ddr_bytes for t in tables)
    return Load(hbm, ddr, sum(t.forecast.ms for t in tables))
