"""Makes a table of two tiers from its config, a mode and a size."""

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
    from .together import Together

MODES = ("HYBRID", "CACHING")
TierTable = HybridTable | CachingTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiers:
    """How a table lies in two tiers: `mode` is "HYBRID" or "CACHING".

    The fast tier holds `fast_rows`, on a device in a table of `slots` (as many if not given).
    `allow_small` lets a cache be smaller than what a step needs.

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
    """An empty table; its fast tier on the device, in host memory if that is the CPU.

    `slow` is what lies behind it, a `HostTable` of the config if not given.

    >>> import hedgerow as hr
    >>> config = hr.TableConfig("user", (hr.Segment(4, hr.Zeros(), hr.Sgd()),))
    >>> tier_table(config, Tiers(mode="HYBRID", fast_rows=10))
    HybridTable('user', 0 of 10 rows on cpu, over HostTable('user', 0 rows of 4 x Sgd(...)))
    """
    if device == checks.CPU:
        fast: HostTable | DeviceTable = HostTable(_front(config, tiers), clock=clock)
    else:
        from ..tables.device import DeviceTable

        slots = tiers.slots or tiers.fast_rows
        fast = DeviceTable(
            _front(config, tiers), capacity_rows=slots, device=device, clock=clock
        )
    return _over(fast, slow or HostTable(config, clock=clock), tiers)


def tier_tables(
    configs: Sequence[tuple[TableConfig, Tiers]],
    *,
    device: torch.device,
    clock: Clock | None = None,
) -> tuple[list[TierTable], list[Together]]:
    """Empty tables with their fast tiers on a device; those that are alike step together."""
    from ..kernels.layout import LANES
    from ..tables.device import DeviceTable
    from ..tables.multi.device_group import DeviceGroup
    from .together import Together

    made: dict[str, TierTable] = {}
    groups: list[Together] = []
    # Of their own they would take memory that the group then takes again.
    fronts = [
        DeviceTable(_front(config, tiers), capacity_rows=1, device=device, clock=clock)
        for config, tiers in configs
    ]
    for mine in _alike(fronts, [tiers.mode for _, tiers in configs]):
        fasts = [fronts[i] for i in mine]
        slots = [configs[i][1].slots or configs[i][1].fast_rows for i in mine]
        group = DeviceGroup(fasts, [-(-count // LANES) for count in slots])
        tables = [
            _over(fast, HostTable(configs[i][0], clock=clock), configs[i][1])
            for i, fast in zip(mine, fasts, strict=True)
        ]
        groups.append(Together(tables, group))
        made.update((table.config.name, table) for table in tables)
    for config, tiers in configs:
        if config.name not in made:
            made[config.name] = tier_table(config, tiers, device=device, clock=clock)
    return [made[config.name] for config, _ in configs], groups


def _alike(fronts: Sequence[DeviceTable], modes: Sequence[str]) -> list[list[int]]:
    """Numbers of tables of one mode and of alike rows."""
    from ..tables.multi.device_group import kind_of

    kinds: dict[object, list[int]] = {}
    for i, (front, mode) in enumerate(zip(fronts, modes, strict=True)):
        kind = kind_of(front)
        if kind is not None:
            kinds.setdefault((mode, kind), []).append(i)
    return list(kinds.values())


def _front(config: TableConfig, tiers: Tiers) -> TableConfig:
    few = min(config.initial_capacity, tiers.fast_rows)
    return replace(config, admit=None, initial_capacity=few)


def _over(fast: HostTable | DeviceTable, slow: HostTable, tiers: Tiers) -> TierTable:
    if tiers.mode == "HYBRID":
        return HybridTable(fast, slow, fast_rows=tiers.fast_rows)
    return CachingTable(fast, slow, cache_rows=tiers.fast_rows, allow_small=tiers.allow_small)
