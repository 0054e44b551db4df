"""The time of one step of a mode: its formula and its parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...core import checks
from ...core.errors import ConfigError
from ..problem.topology import Links


@dataclass(frozen=True, slots=True)
class HostCost:
    """What the host does in a step; known only where the real path of a mode was measured.

    Keys whose rows lie on the host cost `host_ms` if there are any, `host_table_ms` for each table
    that has some, `host_key_ms` each, and their bytes at `host_bytes_per_ms`. Each time that caches
    make way takes `move_ms`, or that hot rows of a hybrid's table come; to look for such takes
    `look_ms`. Where a step misses many rows of a cache at once, those beyond what leaves beside the
    steps take `crowded_key_ms` more. Few ids of a table are done by one
    thread: `alone_id_ms` and `alone_byte_ms` are what each of them takes more, and a byte of its
    vector. So are more ids until others have woken up to help: `pool_ms` is the most that costs.
    Vectors of a step that do not fit the processor's caches are slower: of more than about
    `cache_bytes` a byte takes `cold_byte_ms` more.
    """

    host_ms: float = 0.0
    host_key_ms: float = 0.0
    host_bytes_per_ms: float | None = None
    move_ms: float = 0.0
    alone_id_ms: float = 0.0
    alone_byte_ms: float = 0.0
    pool_ms: float = 0.0
    cold_byte_ms: float = 0.0
    cache_bytes: float = 1.0
    host_table_ms: float = 0.0
    crowded_key_ms: float = 0.0
    look_ms: float = 0.0

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name in ("host_bytes_per_ms", "cache_bytes"):
                if value is not None:
                    checks.setting("HostCost", one.name, value, above=0)
            else:
                checks.setting("HostCost", one.name, value, least=0)


_OF_THE_HOST = tuple(one.name for one in fields(HostCost))


@dataclass(frozen=True, slots=True)
class ModeCost:
    """What a step costs whatever is read, and what finding one distinct key costs.

    All else is known only where the real path of a mode was measured. Tables that are alike step
    together: `launch_ms` is then of the step of all of them, and `table_ms` of each. `id_ms` and
    `id_byte_ms` are of every id, equal ones too, and of every byte of its vector: it is written for
    the model and its gradient read. `ahead` is 1 if the device waits while the host launches, and
    large if the longer of the two counts.

    >>> cost = ModeCost(0.5, 1e-6, host=HostCost(host_ms=0.2))
    >>> cost.to_dict()
    {'launch_ms': 0.5, 'key_ms': 1e-06, 'host_ms': 0.2}
    >>> ModeCost.from_dict(cost.to_dict()) == cost
    True
    """

    launch_ms: float
    key_ms: float
    table_ms: float | None = None
    id_ms: float = 0.0
    id_byte_ms: float = 0.0
    ahead: float = 1.0
    host: HostCost = field(default_factory=HostCost)

    def __post_init__(self) -> None:
        for name in ("launch_ms", "key_ms", "id_ms", "id_byte_ms"):
            checks.setting("ModeCost", name, getattr(self, name), least=0)
        if self.table_ms is not None:
            checks.setting("ModeCost", "table_ms", self.table_ms, least=0)
        checks.setting("ModeCost", "ahead", self.ahead, least=1)

    @property
    def together(self) -> bool:
        """Whether steps of several tables were measured: alike ones share a launch."""
        return self.table_ms is not None

    def text(self) -> str:
        """In words.

        >>> ModeCost(0.5, 1e-6, host=HostCost(host_key_ms=1e-4)).text()
        '0.5000 ms a step, 1.0 ns a distinct key, 100.0 more on the host'
        """
        words = [f"{self.launch_ms:.4f} ms a step"]
        if self.table_ms is not None:
            words.append(f"{self.table_ms:.4f} ms a table")
        words.append(f"{1e6 * self.key_ms:.1f} ns a distinct key")
        if self.id_ms:
            words.append(f"{1e6 * self.id_ms:.1f} ns an id")
        if self.host.host_key_ms:
            words.append(f"{1e6 * self.host.host_key_ms:.1f} more on the host")
        return ", ".join(words)

    def to_dict(self) -> dict[str, float]:
        """Fit for JSON, in one piece: what says something."""
        usual = {one.name: one.default for one in (*fields(self), *fields(HostCost))}
        values = asdict(self)
        values |= values.pop("host")
        return {name: value for name, value in values.items() if value != usual[name]}

    @staticmethod
    def from_dict(values: Mapping[str, float]) -> ModeCost:
        """What `to_dict` was called on."""
        host = {name: value for name, value in values.items() if name in _OF_THE_HOST}
        own = {name: value for name, value in values.items() if name not in _OF_THE_HOST}
        return ModeCost(**own, host=HostCost(**host))


CPU = "CPU"
"""The mode of a table in a world without cards: one table in host memory."""
MODES = ("HBM_ONLY", "HYBRID", "CACHING", "HOST_ONLY", CPU)
MEMORIES = ("hbm", "host_read", "host_write", "ddr")
LINKS = ("intra", "inter")
FULL_OVERLAP = 64.0
"""From this exponent on two tiers take as long as the slower one, to a hundredth."""
_TOPOLOGY_NAME = {"host_read": "hbm_to_ddr", "host_write": "hbm_to_ddr"}
_LINK_MS = 0.02  # an all-to-all of nothing between cards of a machine


@dataclass(frozen=True, slots=True)
class LinkCost:
    """An exchange over a link: a fixed time, and its bytes at the link's speed."""

    latency_ms: float
    bytes_per_ms: float

    def __post_init__(self) -> None:
        checks.setting("LinkCost", "latency_ms", self.latency_ms, least=0)
        checks.setting("LinkCost", "bytes_per_ms", self.bytes_per_ms, above=0)

    def ms(self, sent_bytes: float) -> float:
        """Of an exchange in which a rank sends so much."""
        return self.latency_ms + sent_bytes / self.bytes_per_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeParameters:
    """Costs of modes, bytes a millisecond of memories, costs of links, and how tiers overlap.

    `overlap` is 1 if the two tiers of a table are read one after the other, and large if they are
    read at the same time. Memories and links that are not given are those of the topology.
    `promotion` says how near the fast rows of HYBRID come to the hottest ones: 0 is a split by a
    hash, 1 the hottest; None was not measured, and counts as a split.

    >>> costs = TimeParameters(modes={"CPU": ModeCost(0.01, 1e-4)}, memories={"ddr": 1e7})
    >>> TimeParameters.from_dict(costs.to_dict()) == costs
    True
    """

    modes: Mapping[str, ModeCost]
    memories: Mapping[str, float] = field(default_factory=dict)
    links: Mapping[str, LinkCost] = field(default_factory=dict)
    overlap: float = FULL_OVERLAP
    promotion: float | None = None

    def __post_init__(self) -> None:
        if self.promotion is not None and not 0 <= self.promotion <= 1:
            raise ConfigError(
                f"TimeParameters.promotion is {self.promotion!r}; give a share from 0 to 1."
            )
        for name, known in (("modes", MODES), ("memories", MEMORIES), ("links", LINKS)):
            values = getattr(self, name)
            if not isinstance(values, Mapping):
                raise ConfigError(f"TimeParameters.{name} is {values!r}; give a dict.")
            for key in values:
                if key not in known:
                    checks.unknown(f"key of TimeParameters.{name}", str(key), known)
            object.__setattr__(self, name, dict(values))
        for name, speed in self.memories.items():
            checks.setting("TimeParameters.memories", name, speed, above=0)
        checks.setting("TimeParameters", "overlap", self.overlap, least=1)

    def mode(self, name: str) -> ModeCost:
        """The cost of a mode; one that was not measured is named."""
        if name not in self.modes:
            raise ConfigError(
                f"the calibration has no mode {name}; it has {', '.join(self.modes)}: calibrate on "
                f"a machine that runs it, or plan with Calibration.default()."
            )
        return self.modes[name]

    def memory(self, name: str, links: Links) -> float:
        """Bytes a millisecond, measured or else as the topology has it."""
        known = self.memories.get(name)
        return links.bytes_per_ms(_TOPOLOGY_NAME.get(name, name)) if known is None else known

    def exchange_ms(self, name: str, sent_bytes: float, links: Links) -> float:
        """Of an exchange over a link, measured or else as the topology has it."""
        known = self.links.get(name)
        if known is not None:
            return known.ms(sent_bytes)
        return _LINK_MS + sent_bytes / links.bytes_per_ms(name)

    def to_dict(self) -> dict[str, Any]:
        """Fit for JSON."""
        return {
            "modes": {name: cost.to_dict() for name, cost in self.modes.items()},
            "memories": dict(self.memories),
            "links": {
                name: {"latency_ms": cost.latency_ms, "bytes_per_ms": cost.bytes_per_ms}
                for name, cost in self.links.items()
            },
            "overlap": self.overlap,
            **({} if self.promotion is None else {"promotion": self.promotion}),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TimeParameters:
        """What `to_dict` was called on."""
        try:
            return cls(
                modes={name: ModeCost.from_dict(cost) for name, cost in values["modes"].items()},
                memories=values["memories"],
                links={name: LinkCost(**cost) for name, cost in values["links"].items()},
                overlap=values["overlap"],
                promotion=values.get("promotion"),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"the parameters of a calibration are not as they are written: {error!r}; measure "
                f"again with `hedgerow calibrate`."
            ) from error


def overlapped(near_ms: float, far_ms: float, overlap: float) -> float:
    """The time of two tiers: their sum at overlap 1, nearly the larger one if it is large.

    >>> overlapped(3.0, 4.0, 1), overlapped(3.0, 4.0, 2), round(overlapped(3.0, 4.0, 64.0), 6)
    (7.0, 5.0, 4.0)
    """
    most, least = max(near_ms, far_ms), min(near_ms, far_ms)
    return most * (1 + (least / most) ** overlap) ** (1 / overlap) if most > 0 else 0.0


N = TypeVar("N", float, NDArray[np.float64])
"""Of one step, or a column of them."""
SPARE, STEPS_SPARE, MOST_SPARE = 512, 4, 64
"""Twice the first part of a cache leaves at once, or what twice so many steps need; at most twice
the last part."""
MOVE_STEPS, SOON_STEPS, MANY = 16, 2, 5
"""A hybrid looks for hot rows every 16th step; every 2nd where one id of 5 is on the host."""


@dataclass(frozen=True, slots=True)
class RowMoves(Generic[N]):
    """Of a step: times that a hybrid looks for hot rows, and that rows move; keys for which a cache
    makes way at once."""

    looks: N
    moves: N
    crowded: N


NO_MOVES = RowMoves(0.0, 0.0, 0.0)


def row_moves(
    mode: str,
    missed: float,
    ids: float,
    tables: float,
    fast_rows: float,
    moved: float | None = None,
) -> RowMoves[float]:
    """All of it, as the functions below have it.

    >>> row_moves("CACHING", 320.0, 1e4, 10.0, 65536.0)
    RowMoves(looks=0.0, moves=0.125, crowded=0.0)
    """
    return RowMoves(
        looks(mode, missed, ids, tables),
        moves(mode, missed, ids, tables, fast_rows, moved),
        crowded(mode, missed, tables, fast_rows),
    )


def looks(mode: str, missed: float, ids: float, tables: float) -> float:
    """Times a step that a hybrid looks for hot rows, table by table; `missed` keys of all tables
    are on the host.

    >>> looks("HYBRID", 320.0, 1e4, 10.0), looks("HYBRID", 3200.0, 1e4, 10.0)
    (0.625, 5.0)
    """
    if mode != "HYBRID":
        return 0.0
    steps = SOON_STEPS if MANY * missed > ids else MOVE_STEPS
    return tables / steps * -math.expm1(-missed)  # by the chance that a step misses any


def moves(
    mode: str,
    missed: float,
    ids: float,
    tables: float,
    fast_rows: float,
    moved: float | None = None,
) -> float:
    """Times a step that rows move; `missed` keys of all tables are on the host.

    Those of a hybrid do so table by table, those of caches together. Of a cache whose rows are not
    known (infinitely many) none. A hybrid that looks for hot rows finds some, unless so many
    rows as `moved` a step are said to have come.

    >>> moves("CACHING", 320.0, 1e4, 10.0, 65536.0)  # 32 of each table; 256 leave at once
    0.125
    >>> moves("HYBRID", 320.0, 1e4, 10.0, 1024.0)
    0.625
    >>> moves("HYBRID", 320.0, 1e4, 10.0, 1024.0, moved=0.0)
    0.0
    """
    if mode == "CACHING":
        each = missed / tables
        spare = min(max(STEPS_SPARE * each, fast_rows / SPARE), fast_rows / MOST_SPARE)
        return min(1.0, each / (2 * spare)) if spare else 0.0
    often = looks(mode, missed, ids, tables)
    if moved is None or not often:
        return often
    return often * -math.expm1(-moved / often)  # by the chance that a look finds any


def crowded(mode: str, missed: float, tables: float, fast_rows: float) -> float:
    """The `missed` keys for which a cache must make way at once: beyond a 64th of it.

    >>> [crowded("CACHING", missed, 10.0, 65536.0) for missed in (10_000.0, 11_000.0)]
    [0.0, 760.0]
    """
    return max(0.0, missed - fast_rows * tables / MOST_SPARE) if mode == "CACHING" else 0.0


Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Speeds:
    """Bytes a millisecond of memories, and how much tiers overlap."""

    near: float
    host_read: float
    host_write: float
    overlap: float


@dataclass(frozen=True, slots=True)
class Step(Generic[N]):
    """What a step does: bytes are of a key, `id_bytes` of the vector of an id."""

    keys: N  # distinct ones, of all tables
    ids: N  # equal ones too
    read: N
    write: N
    id_bytes: N
    far: N  # share of keys whose rows lie on the host
    tables: N
    moving: RowMoves[N]
    handled: N  # ids whose vectors the host handles, as `few_ids` has them
    alone: N  # those that one thread does
    pools: N  # times that all threads are woken up


def step_ms(step: Step[float], cost: ModeCost, speeds: Speeds) -> float:
    """Milliseconds of a step, by section 12.1 and by what our own paths were measured to add.

    >>> from .row_moves import NO_MOVES
    >>> one = Step(1000.0, 1000.0, 512.0, 256.0, 256.0, 0.5, 1.0, NO_MOVES, 0.0, 0.0, 0.0)
    >>> round(step_ms(one, ModeCost(0.5, 1e-3), Speeds(1e6, 1e5, 1e5, 1.0)), 3)
    5.724
    """
    return _step_ms(step, cost, speeds, overlapped, min)


def steps_ms(steps: Step[Floats], cost: ModeCost, speeds: Speeds) -> Floats:
    """`step_ms` of many."""
    return _step_ms(steps, cost, speeds, _overlapped, np.minimum)


def _step_ms(
    step: Step[N],
    cost: ModeCost,
    speeds: Speeds,
    both: Callable[[N, N, float], N],
    least: Callable[[N, N], N],
) -> N:
    every = step.read + step.write
    near = step.keys * (cost.key_ms + (1 - step.far) * every / speeds.near)
    near = near + step.ids * (cost.id_ms + step.id_bytes * cost.id_byte_ms)
    host = cost.host
    if host.host_bytes_per_ms is None:
        row = step.read / speeds.host_read + step.write / speeds.host_write
    else:
        row = every / host.host_bytes_per_ms
    missed = step.keys * step.far
    far = missed * (host.host_key_ms + row)
    # Few vectors stay in the caches, of many nearly all come from memory.
    vectors = step.handled * step.id_bytes
    cold = vectors * (vectors / (vectors + host.cache_bytes)) * host.cold_byte_ms
    if not cost.together:
        return cost.launch_ms + both(near, far, speeds.overlap) + cold
    # The host runs ahead of the device until it must know which rows are absent: then it works
    # on those, and the device waits.
    some: N = -np.expm1(-missed)  # pyright: ignore[reportAssignmentType]
    far = far + cold + some * host.host_ms  # by the chance that a step has such keys
    asked: N = -np.expm1(-missed / step.tables)  # pyright: ignore[reportAssignmentType]
    far = far + step.tables * asked * host.host_table_ms
    moving = step.moving
    far = far + moving.looks * host.look_ms + moving.moves * host.move_ms
    far = far + moving.crowded * host.crowded_key_ms
    alone = host.alone_id_ms + step.id_bytes * host.alone_byte_ms
    # Others help as soon as they have woken up: until then one thread does all.
    woken = least(step.pools * host.pool_ms, (step.handled - step.alone) * alone)
    far = far + step.alone * alone + woken
    launch = cost.launch_ms + step.tables * (cost.table_ms or 0.0)
    return both(launch, near, cost.ahead) + far


def _overlapped(one: Floats, other: Floats, overlap: float) -> Floats:
    most, least = np.maximum(one, other), np.minimum(one, other)
    return most * (1 + (least / np.maximum(most, 1e-300)) ** overlap) ** (1 / overlap)


FEW_IDS = 8192
"""Calls of fewer ids on one table are done by one thread: to wake others up takes longer."""


class HostIds(NamedTuple):
    """Of a step: ids whose vectors the host handles; those that one thread does, table by table;
    how often all threads must be woken up to help."""

    handled: float
    alone: float
    pools: float


def host_ids(mode: str, ids: float, missed: float, tables: float) -> HostIds:
    """Of a mode, of tables alike.

    Tables on the host are asked for all ids, two tiers for the `missed` keys that are not in HBM;
    rows behind caches are always read by all threads. Tables on the host copy their vectors in
    between, and threads fall asleep; those of a hybrid follow one another.

    >>> host_ids("HOST_ONLY", 1e5, 1e4, 10.0)
    HostIds(handled=100000.0, alone=0.0, pools=10.0)
    >>> host_ids("HYBRID", 1e5, 1e4, 10.0), host_ids("HYBRID", 1e6, 1e5, 10.0).pools
    (HostIds(handled=10000.0, alone=10000.0, pools=0.0), 1.0)
    """
    if mode == "HBM_ONLY":
        return HostIds(0.0, 0.0, 0.0)
    handled = missed if mode in ("HYBRID", "CACHING") else ids
    if mode == "CACHING":
        return HostIds(handled, 0.0, 0.0)
    if handled < FEW_IDS * tables:
        return HostIds(handled, handled, 0.0)
    return HostIds(handled, 0.0, 1.0 if mode == "HYBRID" else tables)
