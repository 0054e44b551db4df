"""Bytes that a table takes on one rank, of either memory, kept in one way or another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from ..problem.table_spec import TableSpec
from ..problem.topology import Topology
from ..problem.variant import Mode, Variant
from .layout import Layout, ceil
from .row_bytes import row_bytes
from .step_load import StepLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Bytes of one rank: `hbm` of its device, `ddr` of host memory. The others are parts of them.

    `metadata` is everything beside the values, `counter` an admission's counts, `io` the buffers
    of a step.
    """

    rows_per_rank: int
    row_bytes: int
    hbm: int
    ddr: int
    hbm_values: int
    ddr_values: int
    metadata: int
    counter: int
    io: int


@dataclass(frozen=True, slots=True)
class _Parts:
    """Values and metadata in each memory; fractions until they are added up."""

    hbm_values: Fraction | int = 0
    ddr_values: Fraction | int = 0
    hbm_metadata: Fraction | int = 0
    ddr_metadata: Fraction | int = 0


def storage_of(
    spec: TableSpec,
    variant: Variant,
    topology: Topology,
    layout: Layout,
    load: StepLoad,
    *,
    only_values: bool = False,
) -> Storage:
    """What the table takes on each rank. `only_values`: as the run time is granted it.

    Without cards everything lies in host memory.

    >>> from .layout import BASELINE
    >>> table = TableSpec(name="t", rows=1024, dim=64, optimizer="none")
    >>> one = Topology(world=1, hbm_per_device=2**30, ddr_per_machine=2**30)
    >>> found = storage_of(table, Variant(Mode.CACHING, "0.25"), one, BASELINE, StepLoad())
    >>> found.hbm, found.ddr
    (82976, 262144)
    """
    (found,) = storages_of(spec, (variant,), topology, layout, load, only_values=only_values)
    return found


def storages_of(
    spec: TableSpec,
    variants: Sequence[Variant],
    topology: Topology,
    layout: Layout,
    load: StepLoad,
    *,
    only_values: bool = False,
) -> tuple[Storage, ...]:
    """`storage_of` for each variant; what they have in common is worked out once."""
    rows = rows_per_rank(spec, topology.world, layout)
    width = row_bytes(spec, layout, inference=load.inference)
    counter = 0 if only_values else _counter_bytes(spec, topology.world, layout)
    io = 0 if only_values else load.buffers(spec, topology.world, rows_travel=layout.own_rows)
    divide = _one_index if layout.one_index else _two_tables
    found: list[Storage] = []
    for variant in variants:
        parts = divide(rows, width, variant, layout)
        if only_values:
            parts = _Parts(parts.hbm_values, parts.ddr_values)
        hbm = ceil(parts.hbm_values + parts.hbm_metadata) + io
        ddr = ceil(parts.ddr_values + parts.ddr_metadata)
        if layout.counter_on_card:
            hbm += counter
        else:
            ddr += counter
        hbm_values, ddr_values = ceil(parts.hbm_values), ceil(parts.ddr_values)
        if topology.device == "cpu":
            hbm, ddr = 0, hbm + ddr
            hbm_values, ddr_values = 0, hbm_values + ddr_values
        found.append(
            Storage(
                rows_per_rank=rows,
                row_bytes=width,
                hbm=hbm,
                ddr=ddr,
                hbm_values=hbm_values,
                ddr_values=ddr_values,
                metadata=ceil(parts.hbm_metadata + parts.ddr_metadata),
                counter=counter,
                io=io,
            )
        )
    return tuple(found)


def shard_rows(rows: int, world: int) -> tuple[int, ...]:
    """Rows of each rank, whole shares first.

    >>> shard_rows(10, 4), shard_rows(2, 4)
    ((3, 3, 3, 1), (1, 1, 0, 0))
    """
    share = -(-rows // world)
    return tuple(max(0, min(share, rows - share * rank)) for rank in range(world))


def rows_per_rank(spec: TableSpec, world: int, layout: Layout) -> int:
    """Rows that every rank has room for: those of the first, and what chance may add.

    Ids that hashing spreads over ranks are not spread evenly; blocks of ids are.

    >>> from .layout import HEDGEROW, STRICT
    >>> spec = TableSpec(name="t", rows=1_000_000, dim=8)
    >>> rows_per_rank(spec, 8, STRICT), rows_per_rank(spec, 8, HEDGEROW)
    (125056, 126238)
    """
    return layout.host.count(_spread(spec.rows, spec, world, layout))


def _spread(ids: int, spec: TableSpec, world: int, layout: Layout) -> int:
    """The most of `ids` that one rank is to expect: so many deviations above its share, or all."""
    share = -(-ids // world)
    if layout.spread == 0 or spec.dist_type == "continuous":
        return share
    return min(ids, share + _root((layout.spread * share) ** 2 * Fraction(world, ids)))


def _root(value: Fraction) -> int:
    """The square root, rounded up, without the rounding of floats."""
    whole = ceil(value)
    root = math.isqrt(whole)
    return root if root * root == whole else root + 1


def _one_index(rows: int, width: int, variant: Variant, layout: Layout) -> _Parts:
    """One index on the card; only values are divided."""
    share, values = variant.share, rows * width
    on_host = values if variant.mode is Mode.CACHING else values * (1 - share)
    return _Parts(values * share, on_host, hbm_metadata=rows * layout.whole.per_slot())


_END = {Fraction(0): Mode.HOST_ONLY, Fraction(1): Mode.HBM_ONLY}


def _two_tables(rows: int, width: int, variant: Variant, layout: Layout) -> _Parts:
    """A table in each memory that is used; at the ends of the factor one is not."""
    in_hbm = rows * variant.share.numerator // variant.share.denominator
    match _END.get(variant.share, variant.mode):
        case Mode.HBM_ONLY:
            return _Parts(
                layout.whole.count(rows) * width, hbm_metadata=layout.whole.metadata(rows)
            )
        case Mode.HOST_ONLY:
            return _with_host(rows, width, layout)
        case Mode.HYBRID:
            front, backing = layout.front, rows - in_hbm
        case Mode.CACHING:
            front, backing = layout.cache, rows
    return _with_host(backing, width, layout, front.count(in_hbm) * width, front.metadata(in_hbm))


def _with_host(
    rows: int, width: int, layout: Layout, hbm_values: int = 0, hbm_metadata: int = 0
) -> _Parts:
    """What lies in HBM, and a host table of `rows` beside it."""
    beside = layout.host.metadata(rows)
    on_card, on_host = (beside, 0) if layout.host_index_on_card else (0, beside)
    return _Parts(hbm_values, layout.host.count(rows) * width, hbm_metadata + on_card, on_host)


def _counter_bytes(spec: TableSpec, world: int, layout: Layout) -> int:
    """Of the counts that admission keeps, 0 without one."""
    if spec.counter_rows == 0:
        return 0
    if layout.spread == 0:  # as published: rounded down
        return layout.counter.metadata(spec.counter_rows // world)
    return layout.counter.metadata(_spread(spec.counter_rows, spec, world, layout))
