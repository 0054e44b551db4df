"""The fast tier on a device: the same rows, moved over and back by kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hedgerow.core.clock import ManualClock
from hedgerow.core.errors import ConfigError
from hedgerow.tables.config import TableConfig
from hedgerow.tables.device import DeviceTable
from hedgerow.tables.host import HostTable
from hedgerow.tiers.caching import CachingTable
from hedgerow.tiers.hybrid import HybridTable

from .against_one import Against
from .test_hybrid import CONFIGS, fast_config


def _on_device(mode: str, device: torch.device) -> Any:
    def make(config: TableConfig, clock: ManualClock) -> HybridTable | CachingTable:
        fast = DeviceTable(fast_config(config), capacity_rows=16, device=device, clock=clock)
        slow = HostTable(config, clock=clock)
        if mode == "hybrid":
            return HybridTable(fast, slow, fast_rows=16, promotions=8)  # more than find room
        return CachingTable(fast, slow, cache_rows=8, allow_small=True)

    return make


@pytest.mark.parametrize(
    ("mode", "config", "calls"),
    [
        ("hybrid", CONFIGS[1], 8),
        pytest.param("caching", CONFIGS[1], 8, marks=pytest.mark.long),
        *(
            pytest.param(mode, config, 60, marks=pytest.mark.long)
            for mode in ("hybrid", "caching")
            for config in (CONFIGS[0], CONFIGS[2], CONFIGS[4])
        ),
    ],
)
def test_random_calls_give_the_rows_of_one_table(
    mode: str, config: TableConfig, calls: int, device: torch.device
) -> None:
    if device.type != "cpu":
        pytest.skip("the calls are made of tensors in host memory")
    pair = Against(config, _on_device(mode, device), seed=2, ids=25, most=8)
    pair.run(calls)
    stats = pair.ours.stats()
    assert stats["promotions" if mode == "hybrid" else "fetches"] > 0


def test_a_device_table_must_have_room(device: torch.device) -> None:
    fast = DeviceTable(CONFIGS[0], capacity_rows=16, device=device)
    with pytest.raises(ConfigError, match="fast_rows is 17; the DeviceTable has 16 slots"):
        HybridTable(fast, HostTable(CONFIGS[0]), fast_rows=17)
