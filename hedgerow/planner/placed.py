"""One table as a plan places it: where it lives, what that takes and what it should cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .problem.variant import Mode, Variant

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
