"""What the published planner sees: options as shards, and memory device by device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShardedOption:
    """One way to keep a table: bytes of HBM and host memory of each shard, and its cost.

    >>> ShardedOption("item", ((10, 2), (10, 2)), 5.0).hbm
    20
    """

    table: str
    shards: tuple[tuple[int, int], ...]
    perf: float

    @property
    def hbm(self) -> int:
        """Of all shards."""
        return sum(hbm for hbm, _ in self.shards)

    @property
    def ddr(self) -> int:
        """Of all shards."""
        return sum(ddr for _, ddr in self.shards)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineMachines:
    """HBM and a slice of host memory of every device; `local_world` of them share a machine."""

    hbm: tuple[int, ...]
    ddr: tuple[int, ...]
    local_world: int | None = None

    def pruned(self, options: Sequence[ShardedOption]) -> list[ShardedOption]:
        """Options whose largest shard fits the largest device and the largest machine's pool."""
        local = self.local_world or len(self.hbm)
        starts = range(0, len(self.ddr), local)
        pool = max((sum(self.ddr[start : start + local]) for start in starts), default=0)
        card = max(self.hbm, default=0)
        return [
            option
            for option in options
            if all(hbm <= card and ddr <= pool for hbm, ddr in option.shards)
        ]
