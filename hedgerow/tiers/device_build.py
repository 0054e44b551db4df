"""Makes tables of two tiers with fast rows on a device; those that are alike step together."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..core.clock import Clock
from ..kernels.layout import LANES
from ..tables.config import TableConfig
from ..tables.device import DeviceTable
from ..tables.host import HostTable
from ..tables.multi.device_group import DeviceGroup, kind_of
from .build import Tiers, TierTable, front_config, over, tier_table
from .together import Together


def device_tier_tables(
    configs: Sequence[tuple[TableConfig, Tiers]], device: torch.device, clock: Clock | None = None
) -> tuple[list[TierTable], list[Together]]:
    """Empty tables in the order of the configs, and the groups that step together."""
    made: dict[str, TierTable] = {}
    groups: list[Together] = []
    # Of their own they would take memory that the group then takes again.
    fronts = [
        DeviceTable(front_config(config, tiers), capacity_rows=1, device=device, clock=clock)
        for config, tiers in configs
    ]
    for mine in _alike(fronts, configs):
        group = DeviceGroup([fronts[i] for i in mine], [_buckets(configs[i][1]) for i in mine])
        tables = [
            over(fronts[i], HostTable(configs[i][0], clock=clock), configs[i][1]) for i in mine
        ]
        groups.append(Together(tables, group))
        made.update((table.config.name, table) for table in tables)
    for config, tiers in configs:
        if config.name not in made:
            made[config.name] = tier_table(config, tiers, device=device, clock=clock)
    return [made[config.name] for config, _ in configs], groups


def _alike(
    fronts: Sequence[DeviceTable], configs: Sequence[tuple[TableConfig, Tiers]]
) -> list[list[int]]:
    """Numbers of tables of one mode and of alike rows, as many as one group can hold."""
    kinds: dict[object, list[int]] = {}
    # In the order that a store has them: the parts of neighbours need no copy.
    for i in sorted(range(len(configs)), key=lambda i: configs[i][0].name.encode()):
        if (kind := kind_of(fronts[i])) is not None:
            kinds.setdefault((configs[i][1].mode, kind), []).append(i)
    return [
        mine for mine in kinds.values() if DeviceGroup.fits([_buckets(configs[i][1]) for i in mine])
    ]


def _buckets(tiers: Tiers) -> int:
    return -(-(tiers.slots or tiers.fast_rows) // LANES)
