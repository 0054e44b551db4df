"""Plain torch twins of the kernels of ops.

Those of `to_layout` are chains of torch's ops: `ops.layout.plain`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hedgerow.core.hashing import mix64, signed64
from hedgerow.core.shapes import Float, Float32, Int64
from hedgerow.kernels.layout import Arrays, RowSegment

from .kernels_table import first_values

__all__ = ["add_windows", "copy_windows", "move", "pool", "route", "sum_segments"]


def copy_windows(offsets: Tensor, values: Float[Tensor, "e"], dim: int) -> Float[Tensor, "n dim"]:
    """`values[o : o + dim]` for each offset."""
    return values[offsets.long()[:, None] + torch.arange(dim)]


def add_windows(
    offsets: Tensor,
    rows: Float[Tensor, "n dim"],
    scale: Float[Tensor, ""],
    sums: Float[Tensor, "e"],
) -> None:
    """Adds `rows * scale` into the windows at `offsets`."""
    at = offsets.long()[:, None] + torch.arange(rows.shape[1])
    sums.index_add_(0, at.flatten(), (rows.to(sums.dtype) * scale).flatten())


def sum_segments(
    splits: Int64[Tensor, "segments+1"],
    values: Float[Tensor, "n width"],
    start: int = 0,
    dim: int | None = None,
) -> Float[Tensor, "segments dim"]:
    """The sum of each segment of `dim` columns from `start` on; halves are summed in float32."""
    cut = values[:, start:] if dim is None else values[:, start : start + dim]
    added = cut if cut.element_size() >= 4 else cut.float()
    sums = added.new_zeros(len(splits) - 1, added.shape[1])
    for i, (first, end) in enumerate(zip(splits.tolist(), splits.tolist()[1:], strict=False)):
        for row in added[first:end]:
            sums[i] += row
    return sums.to(values.dtype)


def pool(
    table: Arrays,
    ids: Int64[Tensor, "n"],
    slots: Int64[Tensor, "n"],
    splits: Int64[Tensor, "bags+1"],
    pooling: str,
    weights: Float32[Tensor, "n"] | None = None,
    parts: Sequence[RowSegment] = (),
) -> Float32[Tensor, "bags dim"]:
    """One vector a bag, its ids' rows added in their order; zeros for an empty one."""
    there = (slots >= 0)[:, None]
    rows = torch.where(there, table.values[slots.clamp(min=0), : table.dim], 0.0)
    if parts:
        born = [first_values(ids, part.dim, part.first, part.start) for part in parts]
        rows = torch.where(there, rows, torch.cat(born, dim=1))
    if weights is not None:
        rows = rows * weights[:, None]
    sums = sum_segments(splits, rows)
    count = splits.diff().clamp(min=1).float()[:, None]
    return sums / {"sum": torch.ones_like(count), "mean": count, "sqrtn": count.sqrt()}[pooling]


def _place(key: int, rule: Sequence[int], bounds: Sequence[int]) -> tuple[int, int]:
    """Owner and name of an unsigned key."""
    code, owning, skipped, block, first, count = rule
    if count:
        own = [bound % 2**64 for bound in bounds[first : first + count]]
        below = sum(bound <= key for bound in own)
        if below <= owning:
            return below - 1, key - own[below - 1]
        return key % owning, key // owning
    if code == 0:
        if key < block * owning:
            return key // block + skipped, key % block
        return key % owning + skipped, key // owning
    hashed = int(mix64(torch.tensor([signed64(key)]))) % 2**64 if code == 2 else key
    return hashed % owning + skipped, key


def route(
    keys: Int64[Tensor, "n"],
    splits: Int64[Tensor, "rows+1"],
    feature_rows: Int64[Tensor, "features+1"],
    rules: Int64[Tensor, "features 6"],
    bounds: Int64[Tensor, "b"],
    shards: int,
    most_bounds: int,
) -> tuple[Tensor, Int64[Tensor, "n"], Int64[Tensor, "n"], Int64[Tensor, "shards * rows"]]:
    """Owners, names at their owners, places in their rows, and lengths by owner and row."""
    assert most_bounds == max(rules[:, 5].tolist())
    rows = len(splits) - 1
    owners, local, places = (torch.empty_like(keys) for _ in range(3))
    lengths = torch.zeros(shards * rows, dtype=torch.int64)
    for i, key in enumerate(keys.tolist()):
        row = int((splits <= i).sum()) - 1
        rule = rules[int((feature_rows <= row).sum()) - 1].tolist()
        owner, name = _place(key % 2**64, rule, bounds.tolist())
        owners[i], local[i], places[i] = owner, signed64(name), i - int(splits[row])
        lengths[owner * rows + row] += 1
    return owners, local, places, lengths


def move(
    order: Int64[Tensor, "n"],
    keys: Int64[Tensor, "n"],
    positions: Int64[Tensor, "n"],
    weights: Float32[Tensor, "n"] | None = None,
) -> tuple[Int64[Tensor, "n"], Int64[Tensor, "n"], Float32[Tensor, "n"] | None, Int64[Tensor, "n"]]:
    """Keys, positions and weights in an order, and the way back."""
    moved = None if weights is None else weights[order]
    return keys[order], positions[order], moved, order.argsort()
