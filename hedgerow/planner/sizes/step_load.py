"""What one step of training brings to a rank: ids in, vectors out, and the room for both."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from ...core import checks
from ..problem.table_spec import TableSpec
from .layout import ceil

ID_BYTES = 8
PIPELINES = ("none", "sparse_dist", "prefetch")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLoad:
    """A rank's batch. `output_bytes` is of a value that leaves the table.

    `pipeline` says how many batches are under way: "none", "sparse_dist" (ids of two) or "prefetch"
    (ids of three, and `prefetch_bytes` of rows fetched ahead in so many `passes`).
    `output_at_peak`: outputs are there when memory is fullest. Inference needs no room that stays.

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
        """Ids that a rank reads from the table: as many as it sends, on average."""
        return sum((exact(f.ids_per_sample) * self.batch for f in spec.features), Fraction(0))

    def output_values(self, spec: TableSpec, world: int) -> Fraction:
        """Values that a rank's shard gives out: to all ranks."""
        rows = Fraction(0)
        for feature in spec.features:
            if feature.pooled:
                rows += self.batch
            else:
                rows += exact(feature.ids_per_sample) * self.batch / world
        return rows * world * spec.dim

    def row_values(self, spec: TableSpec, world: int) -> Fraction:
        """Values that a rank holds where rows travel: those it gives, and those it is given."""
        return self.ids(spec) * spec.dim * min(world, 2)

    def buffers(self, spec: TableSpec, world: int, *, rows_travel: bool = False) -> int:
        """Bytes for ids and vectors of the steps that are under way.

        With `rows_travel` owners send rows, and whoever asked pools them; otherwise owners pool
        what they have for the samples of all ranks, and that travels.
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
    """The number as people write it: 0.1 is a tenth."""
    return Fraction(str(value))
