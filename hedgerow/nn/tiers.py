"""Tables in two tiers as a plan says, and whether they take the memory that it says."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from ..core.units import format_bytes
from ..planner.placed import Placed
from ..planner.problem.variant import Mode
from ..planner.sizes.layout import HEDGEROW, Slots
from ..tables.host import HostTable
from ..tiers.build import Tiers, TierTable, tier_tables
from ..tiers.tier_tables import TierTables
from .collection import Collection

if TYPE_CHECKING:
    from ..tables.device import DeviceTable

IN_TIERS = (Mode.HYBRID, Mode.CACHING)
_TOLERANCE = 0.02  # of the planned bytes; more is said


def tiers_as_planned(one: Collection, placed: Sequence[Placed], device: torch.device) -> TierTables:
    """The tables of a collection, empty, each as its line of the plan says."""
    configs, tables = one.store.configs_to_move(device), []
    lines = [line for line in placed if line.mode in IN_TIERS]
    asked = [(configs[line.name], planned_tiers(line)) for line in lines]
    in_tiers, groups = tier_tables(asked, device=device, clock=one.clock)
    by_name = {table.config.name: table for table in in_tiers}
    for line in placed:
        config = configs[line.name]
        made: HostTable | DeviceTable | TierTable
        if line.mode in IN_TIERS:
            made = by_name[line.name]
            compare_with_plan(line, made)
        elif line.mode is Mode.HBM_ONLY:
            from ..tables.device import DeviceTable

            _, slots = _room(line)
            made = DeviceTable(config, capacity_rows=slots, device=device, clock=one.clock)
            compare_with_plan(line, made)
        else:
            made = HostTable(config, clock=one.clock)
        tables.append(made)
    return TierTables(tables, device=device, together=groups)


def planned_tiers(line: Placed) -> Tiers:
    """Rows of the fast tier, and the slots of a device table for them.

    >>> from ..planner.placed import Forecast
    >>> from ..planner.problem.variant import Variant
    >>> line = Placed(name="item", variant=Variant(Mode.HYBRID, "0.1"), dist_type="roundrobin",
    ...     rows_per_rank=1000, row_bytes=64, hbm_bytes=0, ddr_bytes=0, forecast=Forecast(0.5, 0.0))
    >>> planned_tiers(line)
    Tiers(mode='HYBRID', fast_rows=100, slots=128, allow_small=False)
    """
    rows, slots = _room(line)
    return Tiers(mode=line.mode.value, fast_rows=rows, slots=slots)


def compare_with_plan(line: Placed, table: HostTable | DeviceTable | TierTable) -> float | None:
    """How far the bytes of rows on a device are from the planned ones; logs what is more than 2 %.

    None for a table in host memory, which takes memory as rows come.
    """
    fast = table.fast if isinstance(table, TierTable) else table
    beside = table.device_bytes() if isinstance(table, TierTable) else 0
    if isinstance(fast, HostTable):
        return None
    slots, (rows, _) = _slots(line), _room(line)
    planned = slots.count(rows) * line.row_bytes + slots.metadata(rows)
    held = sum(fast.arrays.nbytes) + beside
    off = held / planned - 1
    if abs(off) > _TOLERANCE:
        logging.getLogger("hedgerow").warning(
            "table %s: its rows on the device take %s, the plan says %s (%+.1f %%). Plan again "
            "with this version, or calibrate.",
            *(line.name, format_bytes(held), format_bytes(planned), 100 * off),
        )
    return off


def _room(line: Placed) -> tuple[int, int]:
    """Rows that a table has on a device, and slots for them."""
    share, slots = line.variant.share, _slots(line)
    rows = max(1, line.rows_per_rank * share.numerator // share.denominator)
    return rows, slots.count(rows) - slots.extra


def _slots(line: Placed) -> Slots:
    """Our own tables' slots on a device, whatever layout the plan was made with."""
    tiers = {Mode.CACHING: HEDGEROW.cache, Mode.HYBRID: HEDGEROW.front}
    return tiers.get(line.mode, HEDGEROW.whole)
