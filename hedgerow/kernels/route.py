"""Orders the keys of a batch by owner: one kernel computes owners, another moves sorted keys."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import hashing
from ..core.ids import narrowest
from ..core.shapes import Float32, Int64
from .toolchain import blocks, jit, tl

FIELDS = tl.constexpr(6)  # of a rule: code, owning, skipped, block, first bound, bounds
MIX_1 = tl.constexpr(hashing.MIX_1)
MIX_2 = tl.constexpr(hashing.MIX_2)


@dataclass(frozen=True, slots=True, eq=False)
class Routed:
    """Routing of each key: its owner, its key at the owner, and its position in its row.

    `lengths` counts the keys by owner and row.
    """

    owners: Tensor  # uint8, int16 or int64 [n]
    local: Int64[Tensor, "n"]
    positions: Int64[Tensor, "n"]
    lengths: Int64[Tensor, "shards * rows"]


@jit
def _mixed(key: tl.tensor) -> tl.tensor:
    """Returns the router's hash."""
    key = (key ^ (key >> 33)) * MIX_1
    key = (key ^ (key >> 33)) * MIX_2
    return key ^ (key >> 33)


@jit
def _part(borders: tl.tensor, parts: tl.tensor, i: tl.tensor) -> tl.tensor:
    """Returns the part that holds index i.

    Part p begins at `borders[p]`; of empty parts the last wins.
    """
    low = tl.zeros_like(i)
    high = low + parts
    while tl.max(high - low, axis=0) > 1:
        middle = (low + high) // 2
        inside = high - low > 1
        after = inside & (tl.load(borders + middle, mask=inside, other=0) <= i)
        low = tl.where(after, middle, low)
        high = tl.where(inside & ~after, middle, high)
    return low


@jit
def _between(
    bounds: tl.tensor, begin: tl.tensor, bounded: tl.tensor, key: tl.tensor, most: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """Returns how many bounds of a rule are at most each key, and the last of them."""
    below = begin * 0
    start = below.to(tl.uint64)
    b = tl.full((), 0, tl.int64)
    while b < most:
        bound = tl.load(bounds + begin + b, mask=b < bounded, other=0).to(tl.uint64, bitcast=True)
        passed = (b < bounded) & (bound <= key)
        below += passed.to(tl.int64)
        start = tl.where(passed, bound, start)
        b += 1
    return below, start


@jit
def _owner(
    key: tl.tensor, rule: tl.tensor, bounds: tl.tensor, most_bounds: tl.tensor, live: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """Returns the owner of each key under its rule, and its key at the owner."""
    code = tl.load(rule, mask=live, other=1)
    owning = tl.load(rule + 1, mask=live, other=1).to(tl.uint64)
    block = tl.load(rule + 3, mask=live, other=0).to(tl.uint64)
    bounded = tl.load(rule + 5, mask=live, other=0)
    owner = tl.where(code == 2, _mixed(key), key) % owning
    # Without bounds: one range per owner, then modulo. The local key counts from the range's start.
    ranged = (code == 0) & (bounded == 0)
    size = tl.where(block == 0, 1, block)
    inside = ranged & (key < size * owning)
    owner = tl.where(inside, key // size, tl.where(ranged, key % owning, owner))
    name = tl.where(inside, key % size, tl.where(ranged, key // owning, key))
    first = tl.load(rule + 4, mask=live, other=0)
    below, start = _between(bounds, first, bounded, key, most_bounds)
    within = (bounded > 0) & (below.to(tl.uint64) <= owning)
    owner = tl.where(within, (below - 1).to(tl.uint64), tl.where(bounded > 0, key % owning, owner))
    name = tl.where(within, key - start, tl.where(bounded > 0, key // owning, name))
    shard = owner.to(tl.int64) + tl.load(rule + 2, mask=live, other=0)
    return shard, name.to(tl.int64, bitcast=True)


@jit(do_not_specialize=["n", "rows", "features", "most_bounds"])
def _route(
    keys: tl.tensor,
    splits: tl.tensor,
    feature_rows: tl.tensor,
    rules: tl.tensor,
    bounds: tl.tensor,
    owners: tl.tensor,
    local: tl.tensor,
    positions: tl.tensor,
    lengths: tl.tensor,
    n: tl.tensor,
    rows: tl.tensor,
    features: tl.tensor,
    most_bounds: tl.tensor,
    ROWS: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live = i < n
    key = tl.load(keys + i, mask=live, other=0).to(tl.uint64, bitcast=True)
    row = _part(splits, rows, i)
    rule = rules + _part(feature_rows, features, row) * FIELDS
    shard, name = _owner(key, rule, bounds, most_bounds, live)
    tl.store(owners + i, shard, mask=live)
    tl.store(local + i, name, mask=live)
    tl.store(positions + i, i - tl.load(splits + row, mask=live, other=0), mask=live)
    tl.atomic_add(lengths + shard * rows + row, 1, mask=live, sem="relaxed")


def route(
    keys: Int64[Tensor, "n"],
    splits: Int64[Tensor, "rows+1"],
    feature_rows: Int64[Tensor, "features+1"],
    rules: Int64[Tensor, "features 6"],
    bounds: Int64[Tensor, "b"],
    shards: int,
    most_bounds: int,
) -> Routed:
    """Returns the routing of keys whose rows end at `splits` and features at `feature_rows`.

    See `routing.Router`. `rules` has for each feature: code, number of shards that own keys, number
    of empty shards before them, keys per range, and the start and number of its bounds.
    """
    rows, n = len(splits) - 1, len(keys)
    found = Routed(
        torch.empty(n, dtype=narrowest(shards), device=keys.device),
        torch.empty_like(keys),
        torch.empty_like(keys),
        torch.zeros(shards * rows, dtype=torch.int64, device=keys.device),
    )
    if n and rows:
        _route[blocks(n, 256)](
            *(keys, splits, feature_rows, rules, bounds),
            *(found.owners, found.local, found.positions, found.lengths),
            *(n, rows, len(feature_rows) - 1, most_bounds),
            ROWS=256,
        )
    return found


@jit(do_not_specialize=["n"])
def _move(
    order: tl.tensor,
    keys: tl.tensor,
    weights: tl.tensor | None,
    positions: tl.tensor,
    keys_out: tl.tensor,
    weights_out: tl.tensor | None,
    positions_out: tl.tensor,
    permute: tl.tensor,
    n: tl.tensor,
    ROWS: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    source = tl.load(order + i, mask=i < n, other=0)
    tl.store(keys_out + i, tl.load(keys + source, mask=i < n, other=0), mask=i < n)
    tl.store(positions_out + i, tl.load(positions + source, mask=i < n, other=0), mask=i < n)
    tl.store(permute + source, i, mask=i < n)
    if weights is not None:
        tl.store(weights_out + i, tl.load(weights + source, mask=i < n, other=0.0), mask=i < n)


def move(
    order: Int64[Tensor, "n"],
    keys: Int64[Tensor, "n"],
    positions: Int64[Tensor, "n"],
    weights: Float32[Tensor, "n"] | None = None,
) -> tuple[Int64[Tensor, "n"], Int64[Tensor, "n"], Float32[Tensor, "n"] | None, Int64[Tensor, "n"]]:
    """Returns keys, positions and weights in the given order, and the inverse order."""
    found = torch.empty_like(keys), torch.empty_like(keys), torch.empty_like(keys)
    moved = None if weights is None else torch.empty_like(weights)
    if len(order):
        _move[blocks(len(order), 256)](
            *(order, keys, weights, positions, found[0], moved, found[1], found[2], len(order)),
            ROWS=256,
        )
    return found[0], found[1], moved, found[2]
