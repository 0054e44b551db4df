"""Finds rows of a table on a device and pools bags of them, without a copy of each row."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.shapes import Float32, Int64
from ..kernels import pool
from .device import DeviceTable
from .store import Lookup, Missing, TableKeys


def find(table: DeviceTable, keys: TableKeys) -> Lookup:
    """A lookup that holds the slots of `keys` but no rows, for `pool_bags` and for an update."""
    slots = table.find_slots(keys)
    nothing = torch.empty(0, dtype=torch.float32, device=table.device)
    return Lookup(keys, nothing, (table.config.dim,), slots, table.epoch)


def pool_bags(
    table: DeviceTable,
    ids: Int64[Tensor, "n"],
    slots: Int64[Tensor, "n"],
    splits: Int64[Tensor, "bags+1"],
    pooling: str,
    *,
    weights: Float32[Tensor, "n"] | None = None,
    missing: Missing = "zeros",
) -> Float32[Tensor, "bags dim"]:
    """One vector per bag of found ids; `pooling` is "sum", "mean" or "sqrtn".

    An absent id counts with the row that `DeviceTable.lookup` would give for it.
    """
    born = missing == "initializer" or (missing == "training" and table.config.admit is None)
    with table.on_device():
        return pool.pool(
            *(table.arrays, ids, slots, splits, pooling, weights),
            table.parts if born else (),
        )
