"""The bytes that tables, steps and the dense part of a model take in each memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from ...core import checks
from ...core.errors import ConfigError
from ...core.units import format_bytes
from ..problem.options import Mode, Variant
from ..problem.table_spec import TableSpec
from ..problem.topology import Reserve, Topology
from .layout import Layout, ceil, row_bytes

ID_BYTES = 8
PIPELINES = ("none", "sparse_dist", "prefetch")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLoad:
    """The batch of a rank. `output_bytes` are the bytes of a value that leaves the table.

    `pipeline` gives the batches in flight: "none", "sparse_dist" (ids of two) or "prefetch" (ids of
    three, and `prefetch_bytes` of rows fetched ahead in `passes` passes). `output_at_peak` says
    whether outputs exist when memory is fullest. Inference needs no lasting buffers.

    >>> load = StepLoad(batch=4096)
    >>> load.buffers(TableSpec(name="user", rows=100, dim=32), world=8)
    4227072
    """

    batch: int = 0
    output_bytes: int = 4
    inference: bool = False
    pipeline: str = "none"
    prefetch_bytes: int = 0
    passes: int = 1
    output_at_peak: bool = True

    def __post_init__(self) -> None:
        for name, least in (("batch", 0), ("output_bytes", 1), ("prefetch_bytes", 0)):
            checks.whole("StepLoad", name, getattr(self, name), least=least)
        checks.whole("StepLoad", "passes", self.passes, least=1)
        checks.choice("StepLoad", "pipeline", self.pipeline, PIPELINES)
        checks.switch("StepLoad", "inference", self.inference)
        checks.switch("StepLoad", "output_at_peak", self.output_at_peak)

    def ids(self, spec: TableSpec) -> Fraction:
        """Returns the ids that a rank reads from the table in a step."""
        return sum((exact(f.ids_per_sample) * self.batch for f in spec.features), Fraction(0))

    def output_values(self, spec: TableSpec, world: int) -> Fraction:
        """Returns the values that a rank's shard sends to all ranks."""
        rows = Fraction(0)
        for feature in spec.features:
            if feature.pooled:
                rows += self.batch
            else:
                rows += exact(feature.ids_per_sample) * self.batch / world
        return rows * world * spec.dim

    def row_values(self, spec: TableSpec, world: int) -> Fraction:
        """Returns the values that a rank holds if rows are exchanged: those sent and received."""
        return self.ids(spec) * spec.dim * min(world, 2)

    def buffers(self, spec: TableSpec, world: int, *, rows_travel: bool = False) -> int:
        """Returns the bytes for ids and vectors of the steps in flight.

        With `rows_travel` owners send rows, and the requesting rank pools them. Otherwise each
        owner pools its rows for the samples of all ranks and sends the results.
        """
        if self.inference:
            return 0
        ids = ceil(self.ids(spec) * ID_BYTES)
        values = self.row_values if rows_travel else self.output_values
        output = ceil(values(spec, world) * self.output_bytes)
        if self.pipeline == "none":
            return ids + output
        kept = output if self.output_at_peak else 0
        if self.pipeline == "sparse_dist":
            return 2 * ids + kept
        return 3 * ids + int((1 + Fraction(6, self.passes)) * self.prefetch_bytes) + kept


def exact(value: float) -> Fraction:
    """Returns the number as it is written in decimal: 0.1 is one tenth."""
    return Fraction(str(value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Bytes of one rank: `hbm` of its device, `ddr` of host memory.

    The other sizes are parts of them.

    `metadata` is everything besides the values, `counter` the counts of admission, `io` the buffers
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
    """Values and metadata in each memory. Fractions until they are added up."""

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
    """Returns the bytes of a table on each rank.

    `only_values` leaves out everything but values. Without devices everything is in host memory.

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
    """Returns `storage_of` for each variant. The common part is computed once."""
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
    """Returns the rows of each rank; full shares come first.

    >>> shard_rows(10, 4), shard_rows(2, 4)
    ((3, 3, 3, 1), (1, 1, 0, 0))
    """
    share = -(-rows // world)
    return tuple(max(0, min(share, rows - share * rank)) for rank in range(world))


def rows_per_rank(spec: TableSpec, world: int, layout: Layout) -> int:
    """Returns the rows that every rank must be able to hold.

    Hashing distributes ids unevenly, which needs extra capacity. Ranges of ids need none.

    >>> from .layout import HEDGEROW, STRICT
    >>> spec = TableSpec(name="t", rows=1_000_000, dim=8)
    >>> rows_per_rank(spec, 8, STRICT), rows_per_rank(spec, 8, HEDGEROW)
    (125056, 126238)
    """
    return layout.host.count(_spread(spec.rows, spec, world, layout))


def _spread(ids: int, spec: TableSpec, world: int, layout: Layout) -> int:
    """Returns the most of `ids` that a rank should expect: its share plus some deviations."""
    share = -(-ids // world)
    if layout.spread == 0 or spec.dist_type == "continuous":
        return share
    return min(ids, share + _root((layout.spread * share) ** 2 * Fraction(world, ids)))


def _root(value: Fraction) -> int:
    """Returns the square root rounded up, computed exactly."""
    whole = ceil(value)
    root = math.isqrt(whole)
    return root if root * root == whole else root + 1


def _one_index(rows: int, width: int, variant: Variant, layout: Layout) -> _Parts:
    """Returns the sizes with one index in HBM, where only values are divided."""
    share, values = variant.share, rows * width
    on_host = values if variant.mode is Mode.CACHING else values * (1 - share)
    return _Parts(values * share, on_host, hbm_metadata=rows * layout.whole.per_slot())


_END = {Fraction(0): Mode.HOST_ONLY, Fraction(1): Mode.HBM_ONLY}


def _two_tables(rows: int, width: int, variant: Variant, layout: Layout) -> _Parts:
    """Returns the sizes with one table in each memory that is used."""
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
    """Returns the given HBM sizes with a host table of `rows` rows."""
    beside = layout.host.metadata(rows)
    on_card, on_host = (beside, 0) if layout.host_index_on_card else (0, beside)
    return _Parts(hbm_values, layout.host.count(rows) * width, hbm_metadata + on_card, on_host)


def _counter_bytes(spec: TableSpec, world: int, layout: Layout) -> int:
    """Returns the bytes of the counts that admission keeps, 0 without admission."""
    if spec.counter_rows == 0:
        return 0
    if layout.spread == 0:  # as published: rounded down
        return layout.counter.metadata(spec.counter_rows // world)
    return layout.counter.metadata(_spread(spec.counter_rows, spec, world, layout))


# Parameters, about twice as much optimizer state, and three times as much in gradient buckets.
_DENSE_COPIES = 6
_INPUT_COPIES = 20  # two batches in flight, ten copies each


def dense_size(parameter_bytes: int, buffer_bytes: int = 0, *, inference: bool = False) -> int:
    """Returns the bytes of everything outside the tables during training.

    >>> dense_size(100, 7), dense_size(100, 7, inference=True)
    (607, 107)
    """
    checks.whole("dense_size", "parameter_bytes", parameter_bytes)
    checks.whole("dense_size", "buffer_bytes", buffer_bytes)
    return parameter_bytes * (1 if inference else _DENSE_COPIES) + buffer_bytes


def input_size(ids_per_sample: Iterable[float], batch: int, *, inference: bool = False) -> int:
    """Returns the bytes of the id features of the batches in flight.

    >>> input_size([1, 2.5], 100)
    56000
    """
    checks.whole("input_size", "batch", batch)
    ids = sum((exact(count) * batch for count in ids_per_sample), Fraction(0))
    return ceil(ids * ID_BYTES) * (1 if inference else _INPUT_COPIES)


def reserve_for(
    topology: Topology,
    *,
    dense_bytes: int = 0,
    ids_per_sample: Iterable[float] = (),
    batch: int = 0,
    inference: bool = False,
    hbm_fraction: float = 0.15,
    ddr_fraction: float = 0.10,
) -> Reserve:
    """Returns the reserve of a job: shares of both memories, its dense part and its batches.

    The dense part and the batches are in HBM. Without devices they are in host memory, once per
    rank.

    >>> one = Topology(world=1, hbm_per_device=1000, ddr_per_machine=1000)
    >>> reserve_for(one, dense_bytes=100, ids_per_sample=[1], batch=2).of(one).budget().hbm
    430
    """
    inputs = input_size(ids_per_sample, batch, inference=inference)
    taken = dense_bytes + inputs
    if topology.device == "cpu":
        ranks = max(machine.ranks for machine in topology.machines)
        return Reserve(
            hbm_fraction=hbm_fraction, ddr_fraction=ddr_fraction, ddr_bytes=ranks * taken
        )
    reserve = Reserve(hbm_fraction=hbm_fraction, hbm_bytes=taken, ddr_fraction=ddr_fraction)
    smallest = min(topology.hbm_by_device)
    if int((1 - hbm_fraction) * smallest) < taken:
        raise ConfigError(
            f"No HBM is left for tables: the dense part takes {format_bytes(dense_bytes)}, batches "
            f"of {batch} samples {format_bytes(inputs)} and the reserve {hbm_fraction:.0%} of a "
            f"card of {format_bytes(smallest)}. Use a smaller batch or model, reserve less, or "
            f"plan for larger cards."
        )
    return reserve
