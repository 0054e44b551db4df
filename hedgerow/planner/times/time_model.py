"""The predicted time of a table per step, from its keys and the device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from ...core import checks
from ..problem.key_stats import KeyStats
from ..problem.options import Mode, Variant
from ..problem.table_spec import STATE_PER_VALUE, TableSpec
from ..problem.topology import Topology
from .calibration import Calibration
from .key_model import EXPONENT, DistinctKeys, from_stats, touched, zipf
from .step_time import CPU, NO_MOVES, Speeds, Step, host_ids, row_moves, step_ms

_KEY_BYTES = 8
_KEPT = 8192  # tables whose sums are kept for the variants of each


@dataclass(frozen=True, slots=True)
class Expected:
    """Predictions for a table on a rank and step: milliseconds, hit rate, distinct keys."""

    ms: float
    hit_rate: float
    distinct: float


def expected(
    spec: TableSpec,
    variant: Variant,
    topology: Topology,
    calibration: Calibration,
    batch: int,
    *,
    exponent: float = EXPONENT,
    alike: int = 1,
) -> Expected:
    """Returns the predictions for a table in one variant, with `batch` samples per rank and step.

    A table without sampled keys follows Zipf's law with that exponent. If the calibration has costs
    of several tables per step, `alike` tables share a step, and the time is this table's part. The
    others are assumed to be of the same size and variant.

    >>> from ..problem.options import HBM_ONLY, HOST_ONLY
    >>> item = TableSpec(name="item", rows=10**8, dim=64)
    >>> card = Topology(world=1, hbm_per_device=2**36, ddr_per_machine=2**38)
    >>> known = Calibration.default("NVIDIA H200")
    >>> fast, slow = (expected(item, v, card, known, 65_536) for v in (HBM_ONLY, HOST_ONLY))
    >>> fast.ms < slow.ms, fast.hit_rate, slow.hit_rate, fast.distinct == slow.distinct
    (True, 1.0, 0.0, True)
    """
    step = _step(spec, topology, batch, exponent)
    if step is None:
        return Expected(_idle_ms(variant, topology, calibration, alike), 1.0, 0.0)
    distinct = step.distinct / topology.world
    # An owner gets each key once from every rank that has it. A single rank looks up all of its
    # ids.
    ids = _ids(spec, batch) if topology.world == 1 else _source(spec, batch, exponent)
    hits = _hit_rate(spec, variant, topology, step, calibration.parameters.promotion)
    ms = _lookup_ms(spec, variant, topology, calibration, (distinct, ids, hits, alike))
    if topology.world > 1:
        ms += _exchange_ms(spec, topology, calibration, ids)
    return Expected(ms, hits, distinct)


def thrashes(
    spec: TableSpec,
    variant: Variant,
    topology: Topology,
    batch: int,
    *,
    exponent: float = EXPONENT,
) -> bool:
    """Returns whether a cache is smaller than one step needs. Plans avoid such caches by default.

    >>> from ..problem.options import Mode
    >>> item = TableSpec(name="item", rows=100_000, dim=8)
    >>> card = Topology(world=1, hbm_per_device=2**36)
    >>> [thrashes(item, Variant(Mode.CACHING, x), card, 65_536) for x in ("0.1", "0.5")]
    [True, False]
    """
    if variant.mode != Mode.CACHING:
        return False
    step = _step(spec, topology, batch, exponent)
    return step is not None and step.thrashes(_share(variant.load_factor) * spec.rows)


def without_thrashing(
    spec: TableSpec,
    choices: Iterable[Variant],
    topology: Topology,
    batch: int,
    *,
    allow_thrash: bool = False,
) -> tuple[Variant, ...]:
    """Returns the variants without caches that are smaller than one step needs."""
    return tuple(v for v in choices if allow_thrash or not thrashes(spec, v, topology, batch))


def row_bytes(spec: TableSpec) -> float:
    """Returns the bytes of a row's values and optimizer state, before alignment.

    >>> row_bytes(TableSpec(name="item", rows=9, dim=16, optimizer="adam"))
    192.0
    """
    if spec.optimizer == "rowwise_adagrad":
        state = 1 / spec.dim
    else:
        state = float(STATE_PER_VALUE.get(spec.optimizer, 1))
    return spec.dim * spec.element_bytes * (1 + state)


def _step(spec: TableSpec, topology: Topology, batch: int, exponent: float) -> DistinctKeys | None:
    """Returns how a step of all ranks uses the whole table. Owners have equal parts of it."""
    ids = _ids(spec, batch) * topology.world
    return _sums(spec.stats, spec.rows, exponent, ids) if ids > 0 else None


def _source(spec: TableSpec, batch: int, exponent: float) -> float:
    """Returns the distinct keys of one rank's own batch, which it sends to their owners."""
    return _sums(spec.stats, spec.rows, exponent, _ids(spec, batch)).distinct


def _ids(spec: TableSpec, batch: int) -> float:
    if type(batch) is not int or batch < 1:  # fast path: there are many calls
        checks.count("batch", batch, least=1)
    return batch * sum(feature.ids_per_sample for feature in spec.features)


@lru_cache(maxsize=_KEPT)
def _sums(stats: KeyStats | None, rows: int, exponent: float, ids: float) -> DistinctKeys:
    return touched(zipf(rows, exponent) if stats is None else from_stats(stats, rows), ids)


@lru_cache(maxsize=1024)
def _share(load_factor: str) -> float:
    return float(Fraction(load_factor))


def _hit_rate(
    spec: TableSpec,
    variant: Variant,
    topology: Topology,
    step: DistinctKeys,
    promotion: float | None,
) -> float:
    if variant.mode == Mode.HBM_ONLY:
        return 1.0
    if variant.mode == Mode.HOST_ONLY or topology.device == "cpu":
        return 0.0
    share = _share(variant.load_factor)
    kept = 1.0 if spec.stats is None else 1 - spec.stats.drift
    if variant.mode == Mode.HYBRID:
        split = step.split_hit(share)
        if not promotion:
            return split
        return split + kept * promotion * (step.frequency_hit(share * spec.rows) - split)
    return kept * step.recency_hit(share * spec.rows)


def _lookup_ms(
    spec: TableSpec,
    variant: Variant,
    topology: Topology,
    calibration: Calibration,
    uses: tuple[float, float, float, int],
) -> float:
    """Returns a table's lookup time from its distinct keys, ids, hits and similar tables."""
    costs, links = calibration.parameters, topology.links
    distinct, ids, hits, alike = uses
    cpu = topology.device == "cpu"
    cost = costs.mode(CPU if cpu else variant.mode)
    many = alike if cost.together else 1
    write = row_bytes(spec)
    values = float(spec.dim * spec.element_bytes)
    moving, missed = NO_MOVES, many * distinct * (1 - hits)
    host = cost.host
    if host.look_ms or host.move_ms or host.crowded_key_ms:
        rows = _share(variant.load_factor) * spec.rows / topology.world
        moving = row_moves(variant.mode, missed, many * ids, float(many), rows)
    of_host = host_ids(CPU if cpu else variant.mode, many * ids, missed, float(many))
    step = Step(
        keys=many * distinct,
        ids=many * ids,
        read=values + write,  # forward, and again for the update
        write=write,
        id_bytes=values,
        far=0.0 if cpu else 1 - hits,
        tables=float(many),
        moving=moving,
        handled=of_host.handled,
        alone=of_host.alone,
        pools=of_host.pools,
    )
    speeds = Speeds(
        near=costs.memory("ddr" if cpu else "hbm", links),
        host_read=costs.memory("host_read", links),
        host_write=costs.memory("host_write", links),
        overlap=costs.overlap,
    )
    return step_ms(step, cost, speeds) / many


def _exchange_ms(
    spec: TableSpec, topology: Topology, calibration: Calibration, sent_keys: float
) -> float:
    """Returns the exchange time.

    Keys are sent, rows returned, gradients sent; each key travels once.
    """
    costs, links = calibration.parameters, topology.links
    world, local = topology.world, min(topology.world, topology.ranks_per_machine)
    per_rank = sent_keys / world * (_KEY_BYTES + 2 * spec.dim * spec.element_bytes)
    within = costs.exchange_ms("intra", per_rank * (local - 1), links) if local > 1 else 0.0
    across = 0.0
    if world > local:
        across = costs.exchange_ms("inter", per_rank * (world - local), links)
    return max(within, across)  # both kinds of links work at the same time


def _idle_ms(variant: Variant, topology: Topology, calibration: Calibration, alike: int) -> float:
    cost = calibration.parameters.mode(CPU if topology.device == "cpu" else variant.mode)
    return cost.launch_ms if cost.table_ms is None else cost.launch_ms / alike + cost.table_ms
