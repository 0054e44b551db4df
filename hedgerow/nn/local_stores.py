"""Builds the stores that hold a module's rows in this process, in host memory or on a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ..core.clock import Clock
from ..tables.config import TableConfig
from ..tables.module_store import ModuleStore
from ..tables.multi.host_tables import HostTables


def in_host_memory(configs: Mapping[str, TableConfig], clock: Clock) -> ModuleStore:
    """Returns empty tables in host memory."""
    return HostTables(configs, clock=clock)


def on_a_device(
    configs: Mapping[str, TableConfig],
    clock: Clock,
    device: torch.device | str,
    *,
    capacity_rows: Mapping[str, int] | None = None,
    on_host: Sequence[str] = (),
) -> ModuleStore:
    """Returns empty tables on a device, except those named in `on_host`."""
    from ..tables.multi.device_tables import DeviceTables  # needs Triton

    return DeviceTables(
        configs, device=device, capacity_rows=capacity_rows, on_host=on_host, clock=clock
    )
