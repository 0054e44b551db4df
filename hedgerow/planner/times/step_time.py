"""The time of one step of a mode: its formula and parameters."""

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
    """What the host costs in a step. Known only if steps of the mode were measured.

    - `host_ms`: once, if any key's row is on the host.
    - `host_table_ms`: for each table that has such keys.
    - `host_key_ms` and `host_bytes_per_ms`: for each such key, and the speed of its bytes.
    - `move_ms`: each time that caches evict rows in advance, or that a hybrid promotes rows.
    - `look_ms`: each time that a hybrid searches for rows to promote.
    - `crowded_key_ms`: for each miss beyond the slots that a cache frees in advance.
    - `alone_id_ms` and `alone_byte_ms`: for each id, and each byte of its vector, that a single
      thread handles. A table with few ids is handled by one thread.
    - `pool_ms`: the most that waking up the other threads costs.
    - `cold_byte_ms`: for each byte more than about `cache_bytes` of vectors in a step, which do not
      fit the processor's caches.
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
    """What a step costs in any case, and what finding one distinct key costs.

    The other values are known only if steps of the mode were measured. Tables of one kind share a
    step: then `launch_ms` is for all of them and `table_ms` for each. `id_ms` and `id_byte_ms` are
    for every id, repetitions included, and for every byte of its vector, which is written for the
    model and whose gradient is read. `ahead` is 1 if the device waits while the host launches, and
    large if only the longer of the two counts.

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
        """Whether steps of several tables were measured. Tables of one kind then share a launch."""
        return self.table_ms is not None

    def text(self) -> str:
        """Returns the costs as text.

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
        """Returns the values that differ from their defaults as one flat dict for JSON."""
        usual = {one.name: one.default for one in (*fields(self), *fields(HostCost))}
        values = asdict(self)
        values |= values.pop("host")
        return {name: value for name, value in values.items() if value != usual[name]}

    @staticmethod
    def from_dict(values: Mapping[str, float]) -> ModeCost:
        """Returns the costs from their dict form."""
        host = {name: value for name, value in values.items() if name in _OF_THE_HOST}
        own = {name: value for name, value in values.items() if name not in _OF_THE_HOST}
        return ModeCost(**own, host=HostCost(**host))


CPU = "CPU"
"""The mode of a table without devices: one table in host memory."""
MODES = ("HBM_ONLY", "HYBRID", "CACHING", "HOST_ONLY", CPU)
MEMORIES = ("hbm", "host_read", "host_write", "ddr")
LINKS = ("intra", "inter")
FULL_OVERLAP = 64.0
"""From this exponent on, two tiers take as long as the slower one, to within one percent."""
_TOPOLOGY_NAME = {"host_read": "hbm_to_ddr", "host_write": "hbm_to_ddr"}
_LINK_MS = 0.02  # latency of an all-to-all between GPUs of a machine


@dataclass(frozen=True, slots=True)
class LinkCost:
    """The cost of an exchange over a link: a fixed time, and a speed for its bytes."""

    latency_ms: float
    bytes_per_ms: float

    def __post_init__(self) -> None:
        checks.setting("LinkCost", "latency_ms", self.latency_ms, least=0)
        checks.setting("LinkCost", "bytes_per_ms", self.bytes_per_ms, above=0)

    def ms(self, sent_bytes: float) -> float:
        """Returns the time of an exchange in which a rank sends `sent_bytes`."""
        return self.latency_ms + sent_bytes / self.bytes_per_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeParameters:
    """Costs of modes, speeds of memories in bytes per millisecond, costs of links, and overlaps.

    `overlap` is 1 if the two tiers of a table are read one after the other, and large if they are
    read at the same time. Memories and links that are not given come from the topology. `promotion`
    says how close the fast rows of HYBRID come to the most frequent ones: 0 is a split by hash, 1
    the most frequent rows. None means not measured and counts as a split.

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
        """Returns the cost of a mode. Raises if it was not measured."""
        if name not in self.modes:
            raise ConfigError(
                f"the calibration has no mode {name}; it has {', '.join(self.modes)}: calibrate on "
                f"a machine that runs it, or plan with Calibration.default()."
            )
        return self.modes[name]

    def memory(self, name: str, links: Links) -> float:
        """Returns bytes per millisecond of a memory, as measured or from the topology."""
        known = self.memories.get(name)
        return links.bytes_per_ms(_TOPOLOGY_NAME.get(name, name)) if known is None else known

    def exchange_ms(self, name: str, sent_bytes: float, links: Links) -> float:
        """Returns the time of an exchange over a link, as measured or from the topology."""
        known = self.links.get(name)
        if known is not None:
            return known.ms(sent_bytes)
        return _LINK_MS + sent_bytes / links.bytes_per_ms(name)

    def to_dict(self) -> dict[str, Any]:
        """Returns the parameters as a dict for JSON."""
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
        """Returns the parameters from their dict form."""
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
    """Returns the time of two tiers: their sum at overlap 1, almost the larger one at a large one.

    >>> overlapped(3.0, 4.0, 1), overlapped(3.0, 4.0, 2), round(overlapped(3.0, 4.0, 64.0), 6)
    (7.0, 5.0, 4.0)
    """
    most, least = max(near_ms, far_ms), min(near_ms, far_ms)
    return most * (1 + (least / most) ** overlap) ** (1 / overlap) if most > 0 else 0.0


N = TypeVar("N", float, NDArray[np.float64])
"""A value of one step, or a column of values of many steps."""
SPARE, STEPS_SPARE, MOST_SPARE = 512, 4, 64
"""How many slots a cache frees at once: twice 1/SPARE of its rows, or twice the misses of
STEPS_SPARE steps if that is more, but at most twice 1/MOST_SPARE of its rows."""
MOVE_STEPS, SOON_STEPS, MANY = 16, 2, 5
"""A hybrid searches for rows to promote every 16th step, or every 2nd if one id in 5 is on the
host."""


@dataclass(frozen=True, slots=True)
class RowMoves(Generic[N]):
    """Row moves of a step: searches for rows to promote, moves, and misses without a free slot."""

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
    """Returns the results of `looks`, `moves` and `crowded`.

    >>> row_moves("CACHING", 320.0, 1e4, 10.0, 65536.0)
    RowMoves(looks=0.0, moves=0.125, crowded=0.0)
    """
    return RowMoves(
        looks(mode, missed, ids, tables),
        moves(mode, missed, ids, tables, fast_rows, moved),
        crowded(mode, missed, tables, fast_rows),
    )


def looks(mode: str, missed: float, ids: float, tables: float) -> float:
    """Returns how often per step a hybrid searches for rows to promote, summed over tables.

    `missed` is the number of keys on the host, over all tables.

    >>> looks("HYBRID", 320.0, 1e4, 10.0), looks("HYBRID", 3200.0, 1e4, 10.0)
    (0.625, 5.0)
    """
    if mode != "HYBRID":
        return 0.0
    steps = SOON_STEPS if MANY * missed > ids else MOVE_STEPS
    return tables / steps * -math.expm1(-missed)  # times the probability that a step misses any key


def moves(
    mode: str,
    missed: float,
    ids: float,
    tables: float,
    fast_rows: float,
    moved: float | None = None,
) -> float:
    """Returns how often per step rows move.

    `missed` is the number of keys on the host, of all tables.

    A hybrid moves rows of each table separately; caches do so together. A cache of unknown size
    (infinitely many rows) moves none. Each search of a hybrid moves rows, unless `moved` gives the
    number of rows that were promoted per step.

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
    return often * -math.expm1(-moved / often)  # times the probability that a search finds any row


def crowded(mode: str, missed: float, tables: float, fast_rows: float) -> float:
    """Returns the missed keys for which a cache has no free slot: those beyond a 64th of its rows.

    >>> [crowded("CACHING", missed, 10.0, 65536.0) for missed in (10_000.0, 11_000.0)]
    [0.0, 760.0]
    """
    return max(0.0, missed - fast_rows * tables / MOST_SPARE) if mode == "CACHING" else 0.0


Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Speeds:
    """Speeds of memories in bytes per millisecond, and the overlap of tiers."""

    near: float
    host_read: float
    host_write: float
    overlap: float


@dataclass(frozen=True, slots=True)
class Step(Generic[N]):
    """The work of a step.

    `read` and `write` are bytes per key, `id_bytes` bytes of an id's vector.
    """

    keys: N  # distinct keys of all tables
    ids: N  # with repetitions
    read: N
    write: N
    id_bytes: N
    far: N  # share of keys whose rows are on the host
    tables: N
    moving: RowMoves[N]
    handled: N  # ids whose vectors the host handles, see `host_ids`
    alone: N  # ids that a single thread handles
    pools: N  # how often all threads are woken up


def step_ms(step: Step[float], cost: ModeCost, speeds: Speeds) -> float:
    """Returns the milliseconds of a step, from the formula and the measured costs of our own paths.

    >>> from .step_time import NO_MOVES
    >>> one = Step(1000.0, 1000.0, 512.0, 256.0, 256.0, 0.5, 1.0, NO_MOVES, 0.0, 0.0, 0.0)
    >>> round(step_ms(one, ModeCost(0.5, 1e-3), Speeds(1e6, 1e5, 1e5, 1.0)), 3)
    5.724
    """
    return _step_ms(step, cost, speeds, overlapped, min)


def steps_ms(steps: Step[Floats], cost: ModeCost, speeds: Speeds) -> Floats:
    """Returns `step_ms` of many steps."""
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
    # Few vectors stay in the caches; many vectors come almost entirely from memory.
    vectors = step.handled * step.id_bytes
    cold = vectors * (vectors / (vectors + host.cache_bytes)) * host.cold_byte_ms
    if not cost.together:
        return cost.launch_ms + both(near, far, speeds.overlap) + cold
    # The host runs ahead of the device until it must know which rows are absent. Then it handles
    # those, and the device waits.
    some: N = -np.expm1(-missed)  # pyright: ignore[reportAssignmentType]
    far = far + cold + some * host.host_ms  # times the probability that a step has such keys
    asked: N = -np.expm1(-missed / step.tables)  # pyright: ignore[reportAssignmentType]
    far = far + step.tables * asked * host.host_table_ms
    moving = step.moving
    far = far + moving.looks * host.look_ms + moving.moves * host.move_ms
    far = far + moving.crowded * host.crowded_key_ms
    alone = host.alone_id_ms + step.id_bytes * host.alone_byte_ms
    # Other threads help once they are awake. Until then one thread does all the work.
    woken = least(step.pools * host.pool_ms, (step.handled - step.alone) * alone)
    far = far + step.alone * alone + woken
    launch = cost.launch_ms + step.tables * (cost.table_ms or 0.0)
    return both(launch, near, cost.ahead) + far


def _overlapped(one: Floats, other: Floats, overlap: float) -> Floats:
    most, least = np.maximum(one, other), np.minimum(one, other)
    return most * (1 + (least / np.maximum(most, 1e-300)) ** overlap) ** (1 / overlap)


FEW_IDS = 8192
"""A call with fewer ids on a table is handled by one thread, because waking others takes longer."""


class HostIds(NamedTuple):
    """The ids of a step whose vectors the host handles, and how threads share them."""

    handled: float
    alone: float
    pools: float


def host_ids(mode: str, ids: float, missed: float, tables: float) -> HostIds:
    """Returns the ids that the host handles in a step of `tables` tables of one kind.

    Tables on the host look up all ids. Two tiers look up the `missed` keys that are not in HBM. All
    threads read the rows behind caches. Tables on the host copy their vectors in between, so
    threads fall asleep between tables; tables of a hybrid follow each other directly.

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
