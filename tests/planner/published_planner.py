"""The published planner's variants and its estimate of their times, for comparison."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from hedgerow.core import checks
from hedgerow.core.errors import InputError
from hedgerow.planner.problem.options import HOST_ONLY, Mode, Variant, share_of
from hedgerow.planner.problem.table_spec import TableSpec
from hedgerow.planner.problem.topology import Topology
from hedgerow.planner.sizes.layout import ceil
from hedgerow.planner.sizes.storage import ID_BYTES, StepLoad

TENTHS = ("0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8", "0.9", "1.0")


def baseline_grid(fixed: str | None = None, *, device: str = "cuda") -> tuple[Variant, ...]:
    """HYBRID first, factors ascending; a `fixed` factor leaves two. Without cards there is one.

    >>> len(baseline_grid()), [v.label for v in baseline_grid("0.3")]
    (20, ['HYBRID@0.3', 'CACHING@0.3'])
    """
    if device == "cpu":
        return (HOST_ONLY,)
    factors = TENTHS if fixed is None else (fixed,)
    for factor in factors:
        share_of(factor)
    modes = (Mode.HYBRID, Mode.CACHING)
    return tuple(Variant(mode, factor) for mode in modes for factor in factors)


_BACKWARD = 2  # backward lookups take twice the forward's time
_BATCHED_COPY = 2.455  # what a copy of gradients takes, in writes
_OVERHEAD = 10  # a dynamic table reaches a tenth of the bandwidth
# Of one card and one table, turned into ratios; the second term breaks ties between factors.
_START = {Mode.CACHING: Fraction(28, 100), Mode.HYBRID: Fraction(11, 100)}
_SLOPE = Fraction(1, 100)


class CacheStats(Protocol):
    """What a user knows of a table's cache."""

    def expected_miss_rate(self, share: Fraction) -> float:
        """Misses an access where `share` of the rows are in the cache."""
        ...


@dataclass(frozen=True, slots=True)
class MissHistogram:
    """Accesses by the size of the LRU cache that would just have held their row.

    Sizes from none to the whole table are cut into equal slices. Accesses inside a slice are taken
    as spread over it. Without any data nothing misses.

    >>> stats = MissHistogram((60, 20, 10, 10))
    >>> stats.expected_miss_rate(Fraction(1, 4)), stats.expected_miss_rate(Fraction(1))
    (0.4, 0.0)
    """

    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        for count in self.counts:
            checks.whole("MissHistogram", "counts", count, least=0)

    def expected_miss_rate(self, share: Fraction) -> float:
        """The accesses above `share` of the sizes."""
        total = sum(self.counts)
        if total == 0:
            return 0.0
        reached = min(max(share, Fraction(0)), Fraction(1)) * len(self.counts)
        whole = int(reached)
        hits = Fraction(sum(self.counts[:whole]))
        if whole < len(self.counts):
            hits += (reached - whole) * self.counts[whole]
        return float(1 - hits / total)


def effective_ratio(variant: Variant, stats: CacheStats | None = None) -> Fraction:
    """The share of accesses that the blend gives to HBM; `stats` replace the constants.

    >>> effective_ratio(Variant(Mode.HYBRID, "0.5")), effective_ratio(Variant(Mode.CACHING, "0.5"))
    (Fraction(23, 200), Fraction(57, 200))
    """
    if variant.mode is Mode.HOST_ONLY:
        return Fraction(0)
    if variant.mode is Mode.HBM_ONLY or variant.share >= 1:
        return Fraction(1)
    if stats is not None:
        return _hits(stats.expected_miss_rate(variant.share))
    return _START[variant.mode] + _SLOPE * variant.share


def _hits(miss_rate: float) -> Fraction:
    if miss_rate != miss_rate:
        raise InputError("expected_miss_rate gave NaN; it must give a share of all accesses.")
    return 1 - Fraction(min(max(miss_rate, 0), 1))


def baseline_ms(
    spec: TableSpec,
    variant: Variant,
    topology: Topology,
    load: StepLoad,
    stats: CacheStats | None = None,
    *,
    weighted: bool = False,
) -> float:
    """Milliseconds a step. Reads only; `weighted`: a weight travels with every id.

    >>> table = TableSpec(name="t", rows=4_000_000, dim=128)
    >>> one = Topology(world=1, hbm_per_device=2**36, ddr_per_machine=2**38)
    >>> round(baseline_ms(table, Variant(Mode.HYBRID, "1.0"), one, StepLoad(batch=65536)), 6)
    3.06608
    """
    ids = load.ids(spec)
    read = ceil(ids * ID_BYTES) * (2 if weighted else 1)
    looked_up = float(ids * spec.dim * spec.element_bytes)
    out = float(load.output_values(spec, topology.world) * load.output_bytes)
    bandwidth = _bandwidth(topology, effective_ratio(variant, stats))
    sent = out / _collective(topology)
    forward = (read + looked_up + out) / bandwidth
    return (1 + _BACKWARD) * forward + 2 * sent + _BATCHED_COPY * out / bandwidth


def _bandwidth(topology: Topology, ratio: Fraction) -> float:
    """Bytes a millisecond of a table's memory."""
    links = topology.links
    if topology.device == "cpu":
        return links.bytes_per_ms("ddr")
    fast, slow = links.bytes_per_ms("hbm"), links.bytes_per_ms("hbm_to_ddr")
    share = float(ratio)
    return (share * fast + (1 - share) * slow) / _OVERHEAD


def _collective(topology: Topology) -> float:
    one_machine = topology.world <= topology.ranks_per_machine
    return topology.links.bytes_per_ms("intra" if one_machine else "inter")
