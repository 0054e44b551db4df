"""Makes tables of two tiers from their configs, a mode and a size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from ..core import checks
from ..core.clock import Clock
from ..tables.config import TableConfig
from ..tables.host import HostTable
from .caching import CachingTable
from .hybrid import HybridTable

if TYPE_CHECKING:  # they need Triton
    from ..tables.device import DeviceTable
    from .tier_group import TierGroup

MODES = ("HYBRID", "CACHING")
TierTable = HybridTable | CachingTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiers:
    """How a table is kept in two tiers: `mode` is "HYBRID" or "CACHING".

    The fast tier holds `fast_rows`. On a device its table has `slots` (by default as many).
    `allow_small` lets a cache be smaller than the rows of a step.

    >>> Tiers(mode="CACHING", fast_rows=1000).slots
    """

    mode: str
    fast_rows: int
    slots: int | None = None
    allow_small: bool = False

    def __post_init__(self) -> None:
        checks.choice("Tiers", "mode", self.mode, MODES)
        checks.whole("Tiers", "fast_rows", self.fast_rows, least=1)


def tier_table(
    config: TableConfig,
    tiers: Tiers,
    *,
    device: torch.device = checks.CPU,
    clock: Clock | None = None,
    slow: HostTable | None = None,
) -> TierTable:
    """An empty table with its fast tier on the device; in host memory if that is the CPU.

    `slow` is the store behind it, by default a `HostTable` of the config.

    >>> import hedgerow as hr
    >>> config = hr.TableConfig("user", (hr.Segment(4, hr.Zeros(), hr.Sgd()),))
    >>> tier_table(config, Tiers(mode="HYBRID", fast_rows=10))
    HybridTable('user', 0 of 10 rows on cpu, over HostTable('user', 0 rows of 4 x Sgd(...)))
    """
    if device == checks.CPU:
        fast: HostTable | DeviceTable = HostTable(front_config(config, tiers), clock=clock)
    else:
        from ..tables.device import DeviceTable

        slots = tiers.slots or tiers.fast_rows
        own = front_config(config, tiers)
        fast = DeviceTable(own, capacity_rows=slots, device=device, clock=clock)
    if slow is None:  # a store without rows is false
        slow = HostTable(config, clock=clock)
    return over(fast, slow, tiers)


def tier_tables(
    configs: Sequence[tuple[TableConfig, Tiers]],
    *,
    device: torch.device = checks.CPU,
    clock: Clock | None = None,
) -> tuple[list[TierTable], list[TierGroup]]:
    """`tier_table` for several configs, and the groups of tables on a device that step together."""
    if device != checks.CPU:
        return device_tier_tables(configs, device, clock)
    return [tier_table(config, tiers, clock=clock) for config, tiers in configs], []


def device_tier_tables(
    configs: Sequence[tuple[TableConfig, Tiers]], device: torch.device, clock: Clock | None = None
) -> tuple[list[TierTable], list[TierGroup]]:
    """Empty tables in the order of the configs, and the groups that step together."""
    from ..tables.device import DeviceTable
    from ..tables.multi.device_group import DeviceGroup
    from .tier_group import TierGroup

    made: dict[str, TierTable] = {}
    groups: list[TierGroup] = []
    # Small ones: a group replaces their memory.
    fronts = [
        DeviceTable(front_config(config, tiers), capacity_rows=1, device=device, clock=clock)
        for config, tiers in configs
    ]
    for mine in _alike(fronts, configs):
        group = DeviceGroup([fronts[i] for i in mine], [_buckets(configs[i][1]) for i in mine])
        tables = [
            over(fronts[i], HostTable(configs[i][0], clock=clock), configs[i][1]) for i in mine
        ]
        groups.append(TierGroup(tables, group))
        made.update((table.config.name, table) for table in tables)
    for config, tiers in configs:
        if config.name not in made:
            made[config.name] = tier_table(config, tiers, device=device, clock=clock)
    return [made[config.name] for config, _ in configs], groups


def front_config(config: TableConfig, tiers: Tiers) -> TableConfig:
    """The config of the fast tier, without an admission rule: rows are born in the slow tier."""
    few = min(config.initial_capacity, tiers.fast_rows)
    return replace(config, admit=None, initial_capacity=few)


def over(fast: HostTable | DeviceTable, slow: HostTable, tiers: Tiers) -> TierTable:
    """A table of two empty stores."""
    slow.use_slot_key(fast.slot_key)
    if tiers.mode == "HYBRID":
        return HybridTable(fast, slow, fast_rows=tiers.fast_rows)
    return CachingTable(fast, slow, cache_rows=tiers.fast_rows, allow_small=tiers.allow_small)


def _alike(
    fronts: Sequence[DeviceTable], configs: Sequence[tuple[TableConfig, Tiers]]
) -> list[list[int]]:
    """Numbers of tables of one mode and of alike rows, as many as one group can hold."""
    from ..tables.multi.device_group import DeviceGroup, kind_of

    kinds: dict[object, list[int]] = {}
    # In the order of the names, as a store has them: the parts of neighbours need no copy.
    for i in sorted(range(len(configs)), key=lambda i: configs[i][0].name.encode()):
        if (kind := kind_of(fronts[i])) is not None:
            kinds.setdefault((configs[i][1].mode, kind), []).append(i)
    return [
        mine for mine in kinds.values() if DeviceGroup.fits([_buckets(configs[i][1]) for i in mine])
    ]


def _buckets(tiers: Tiers) -> int:
    from ..kernels.layout import LANES

    return -(-(tiers.slots or tiers.fast_rows) // LANES)
