"""A device table and a host table that see the same calls and must say the same."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hedgerow.core.clock import ManualClock
from hedgerow.tables.config import TableConfig
from hedgerow.tables.device import DeviceTable
from hedgerow.tables.store import Entries

from ..support import everything, host_table


class Pair:
    def __init__(self, config: TableConfig, capacity_rows: int, device: torch.device) -> None:
        self.clock = ManualClock(10**6)
        self.device = DeviceTable(
            config, capacity_rows=capacity_rows, device=device, clock=self.clock
        )
        self.host = host_table(config, clock=self.clock)

    def lookup(self, ids: Tensor, missing: Any) -> None:
        ours = self.device.lookup(ids.to(self.device.device), missing=missing)
        assert torch.equal(ours.rows.cpu(), self.host.lookup(ids, missing=missing).rows)

    def apply(
        self, ids: Tensor, grads: Tensor, ts: int, *, probe_first: bool = False, **more: Any
    ) -> None:
        there = ids.to(self.device.device)
        at = self.device.lookup(there) if probe_first else there
        moved = {k: v.to(there.device) if isinstance(v, Tensor) else v for k, v in more.items()}
        ours = self.device.apply_gradients(at, grads.to(there.device), ts=ts, **moved)
        assert repr(ours) == repr(self.host.apply_gradients(ids, grads, ts=ts, **more))

    def assign(self, ids: Tensor, rows: Tensor, ts: int, *, add: bool = False) -> None:
        there = self.device.device
        tables = (self.device, self.host)
        ours, model = ((t.assign_add if add else t.assign) for t in tables)
        done = ours(ids.to(there), rows.to(there), ts=ts)
        assert repr(done) == repr(model(ids, rows, ts=ts))

    def erase(self, ids: Tensor) -> None:
        ours = self.device.erase(ids.to(self.device.device))
        assert ours.tolist() == self.host.erase(ids).tolist()

    def reinitialize(self, ids: Tensor) -> None:
        ours = self.device.reinitialize(ids.to(self.device.device))
        assert ours.tolist() == self.host.reinitialize(ids).tolist()

    def restore(self, entries: Entries) -> None:
        ours = self.device.restore(entries.to(self.device.device))
        assert repr(ours) == repr(self.host.restore(entries))

    def evict(self, **more: Any) -> int:
        ours, model = (table.evict(capture=True, **more) for table in (self.device, self.host))
        assert ours.ids is not None
        assert model.ids is not None
        assert ours.ts is not None
        assert model.ts is not None
        pairs = [sorted(zip(x.ids.tolist(), x.ts.tolist(), strict=True)) for x in (ours, model)]
        assert pairs[0] == pairs[1]
        assert ours.rows == model.rows
        return ours.rows

    def same(self) -> None:
        assert everything(self.device) == everything(self.host)
        assert self.device.size() == self.host.size()
        assert self.device.max_ts() == self.host.max_ts()
        counted = ("inserted", "refused", "dropped", "erased", "evicted", "clamped_ts")
        stats = [table.stats() for table in (self.device, self.host)]
        assert [stats[0][name] for name in counted] == [stats[1][name] for name in counted]
