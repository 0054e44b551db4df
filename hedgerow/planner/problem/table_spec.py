"""A table as the planner sees it: its size, how it is read, and what the user has fixed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...core import checks
from ...core.errors import ConfigError
from ...routing.router import check_dist_type
from .options import variants

if TYPE_CHECKING:
    from .key_stats import KeyStats

ELEMENT_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
STATE_PER_VALUE = {"none": 0, "sgd": 0, "adam": 2}
"""Optimizer state per value, in floats. Row-wise Adagrad has one per row. Others default to one."""


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature that reads a table: average ids per sample, and whether their rows are pooled.

    >>> Feature(20.0).pooled
    True
    """

    ids_per_sample: float = 1.0
    pooled: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.ids_per_sample < float("inf"):
            raise ConfigError(
                f"Feature.ids_per_sample is {self.ids_per_sample!r}; give a number from 0 on."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec:
    """A table to place: its size, how it is read, and what is known of its keys.

    `optimizer` is a name such as "adam" or "rowwise_adagrad". `counter_rows` is the number of ids
    that its admission counts, 0 without admission. `modes` and `load_factor` restrict the planner's
    choice. `stats` are sampled keys. Tables of one `group` are looked up together.

    >>> TableSpec(name="item", rows=1000, dim=16).dist_type
    'hash_roundrobin'
    """

    name: str
    rows: int
    dim: int
    dtype: str = "fp32"
    optimizer: str = "adagrad"
    counter_rows: int = 0
    features: Sequence[Feature] = (Feature(),)
    dist_type: str = "hash_roundrobin"
    modes: Sequence[str] | None = None
    load_factor: str | None = None
    stats: KeyStats | None = None
    group: str | None = None

    def __post_init__(self) -> None:
        checks.whole("TableSpec", "rows", self.rows, least=1)
        checks.whole("TableSpec", "dim", self.dim, least=1)
        checks.whole("TableSpec", "counter_rows", self.counter_rows, least=0)
        checks.choice("TableSpec", "dtype", self.dtype, tuple(ELEMENT_BYTES))
        check_dist_type("TableSpec", self.dist_type, self.rows)
        object.__setattr__(self, "features", tuple(self.features))
        if self.modes is not None:
            object.__setattr__(self, "modes", tuple(self.modes))
        try:
            variants(fixed=self.load_factor, modes=self.modes)
        except ConfigError as error:
            raise ConfigError(f"table {self.name!r}: {error}") from error

    @property
    def element_bytes(self) -> int:
        """Bytes of one value."""
        return ELEMENT_BYTES[self.dtype]
