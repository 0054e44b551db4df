"""Builds tables in two tiers: on a device and in host memory, or in host memory and on disk."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from ..core.clock import Clock
from ..core.errors import ConfigError
from ..core.units import format_bytes, parse_bytes
from ..launch.rank_info import rank_info
from ..planner.plan import Placed
from ..planner.problem.options import Mode
from ..planner.sizes.layout import HEDGEROW, Slots
from ..tables.config import TableConfig
from ..tables.host import HostTable
from ..tables.host_core import RowFile
from ..tables.layout import RowLayout
from ..tiers.tier_tables import Tiers, TierTable, TierTables, tier_table, tier_tables
from .embedding_modules import EmbeddingModule, collections_of
from .plan import specs_of

if TYPE_CHECKING:
    from ..tables.device import DeviceTable


IN_TIERS = (Mode.HYBRID, Mode.CACHING)
_TOLERANCE = 0.02  # of the planned bytes; a larger difference is logged


def tiers_as_planned(
    one: EmbeddingModule, placed: Sequence[Placed], device: torch.device
) -> TierTables:
    """Returns empty tables of a module, each in the mode and size that the plan gives it."""
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
    """Returns the number of rows in the fast tier of a planned table, and of slots for them.

    >>> from ..planner.plan import Forecast
    >>> from ..planner.problem.options import Variant
    >>> line = Placed(name="item", variant=Variant(Mode.HYBRID, "0.1"), dist_type="roundrobin",
    ...     rows_per_rank=1000, row_bytes=64, hbm_bytes=0, ddr_bytes=0, forecast=Forecast(0.5, 0.0))
    >>> planned_tiers(line)
    Tiers(mode='HYBRID', fast_rows=100, slots=128, allow_small=False)
    """
    rows, slots = _room(line)
    return Tiers(mode=line.mode.value, fast_rows=rows, slots=slots)


def compare_with_plan(line: Placed, table: HostTable | DeviceTable | TierTable) -> float | None:
    """Returns the difference of actual and planned bytes of rows on a device, as a fraction.

    Logs a warning above 2 %. Returns None for a table in host memory, whose memory grows with its
    rows.
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
    """Returns how many rows of a table are on a device, and how many slots they need."""
    share, slots = line.variant.share, _slots(line)
    rows = max(1, line.rows_per_rank * share.numerator // share.denominator)
    return rows, slots.count(rows) - slots.extra


def _slots(line: Placed) -> Slots:
    """Returns the slot layout of Hedgerow's own device tables, whatever layout the planner used."""
    tiers = {Mode.CACHING: HEDGEROW.cache, Mode.HYBRID: HEDGEROW.front}
    return tiers.get(line.mode, HEDGEROW.whole)


_TS_BYTES = 8
_LEAST_BYTES = 2**16  # memory of a table with rows in a file: a call touches many pages


def keep_on_disk(
    model: nn.Module,
    folder: str | os.PathLike[str],
    *,
    memory: str | int,
    rows: Mapping[str, int] | None = None,
) -> None:
    """Limits the memory of a model's rows to `memory` bytes per process. Other rows are in files.

    The tables share the memory evenly. A table that needs less than its part is kept whole in
    memory, and the remainder is divided among the others. Each of the others uses half of its part
    for its hottest rows (HYBRID) and half for pages of an unnamed file in `folder`, which
    disappears with the process. Indexes need additional memory: 16 to 20 bytes per row, and 134
    more per hot row. The results are the same as without files.

    The size of a table is given in `rows` here or by `rows=` of its hr.Table. If a table gets more
    rows than that, it takes more memory if it is kept whole, and more disk if it is not. Call it
    before the tables have rows and before `hr.distribute`. Each process then holds its part of the
    rows, within its own `memory`.

    >>> import hedgerow as hr, tempfile
    >>> model = hr.EmbeddingBags([hr.Table("item", 64, rows=100_000), hr.Table("shop", 8, rows=9)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     hr.keep_on_disk(model, folder, memory="4MiB")
    >>> [type(model.table(name)).__name__ for name in ("item", "shop")]
    ['HybridTable', 'HostTable']
    """
    limit = parse_bytes(memory)
    ranks = rank_info().world_size
    sizes = {spec.name: -(-spec.rows // ranks) for spec in specs_of(model, rows)}
    found = [(one, one.store.configs_to_move(folder)) for one in collections_of(model)]
    needs = {
        name: sizes[name] * stored_bytes(config)
        for _, configs in found
        for name, config in configs.items()
    }
    parts = _shared_evenly(needs, limit)
    spilled = {name: part for name, part in parts.items() if part < needs[name]}
    _check(spilled, limit)
    for one, configs in found:
        if any(name in spilled for name in configs):
            one.set_store(TierTables([_made(c, spilled, folder, one) for c in configs.values()]))
    for name, part in spilled.items():
        logging.getLogger("hedgerow").info(
            "table %s: %s of rows, %s of them in memory, all others in a file in %s",
            *(name, format_bytes(needs[name]), format_bytes(part), os.fspath(folder)),
        )


def _made(
    config: TableConfig,
    spilled: Mapping[str, int],
    folder: str | os.PathLike[str],
    one: EmbeddingModule,
) -> HostTable | TierTable:
    """Returns an empty table: in host memory, or in two tiers if its name is in `spilled`."""
    if config.name not in spilled:
        return HostTable(config, clock=one.clock)
    return on_disk(config, RowFile(folder, spilled[config.name]), "HYBRID", clock=one.clock)


def on_disk(
    config: TableConfig, within: RowFile, mode: str, *, clock: Clock | None = None
) -> HostTable | TierTable:
    """Returns an empty table with rows in a file, whose `mode` is "HYBRID", "CACHING" or "pages".

    With "pages", the resident bytes hold pages of the file. Otherwise half of them hold hot rows,
    and half hold pages.
    """
    if mode == "pages":
        return HostTable(config, clock=clock, rows_in=within)
    hot_bytes = within.resident_bytes // 2
    behind = replace(within, resident_bytes=within.resident_bytes - hot_bytes)
    hot = max(1, hot_bytes // stored_bytes(config))
    slow = HostTable(config, clock=clock, rows_in=behind)
    return tier_table(config, Tiers(mode=mode, fast_rows=hot), clock=clock, slow=slow)


def stored_bytes(config: TableConfig) -> int:
    """Returns the bytes of a row with its optimizer states and its time."""
    return RowLayout(config).row_bytes + _TS_BYTES


def _shared_evenly(needs: Mapping[str, int], limit: int) -> dict[str, int]:
    """Returns the bytes per table: what it needs, or an equal part of what smaller tables leave.

    >>> _shared_evenly({"a": 10, "b": 90, "c": 50}, 100)
    {'a': 10, 'c': 45, 'b': 45}
    """
    parts: dict[str, int] = {}
    names: Sequence[str] = sorted(needs, key=lambda name: needs[name])
    for k, name in enumerate(names):
        parts[name] = min(needs[name], (limit - sum(parts.values())) // (len(names) - k))
    return parts


def _check(spilled: Mapping[str, int], limit: int) -> None:
    for name, part in spilled.items():
        if part < _LEAST_BYTES:
            raise ConfigError(
                f"memory is {format_bytes(limit)}, of which table {name!r} gets {part} bytes; a "
                f"table with rows in a file needs {_LEAST_BYTES} at least. Give more memory."
            )
