"""Names the owner of every key of a batch, and counts the keys of every row and owner."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core import hashing
from ..core.shapes import Int64
from .toolchain import blocks, jit, tl

FIELDS = tl.constexpr(6)  # of a rule: code, owning, skipped, block, first bound, bounds
MIX_1 = tl.constexpr(hashing.MIX_1)
MIX_2 = tl.constexpr(hashing.MIX_2)


@jit
def _mixed(key: tl.tensor) -> tl.tensor:
    """The router's hash."""
    key = (key ^ (key >> 33)) * MIX_1
    key = (key ^ (key >> 33)) * MIX_2
    return key ^ (key >> 33)


@jit(do_not_specialize=["n", "rows", "most_bounds"])
def _route(
    keys: tl.tensor,
    key_rows: tl.tensor,
    row_features: tl.tensor,
    rules: tl.tensor,
    bounds: tl.tensor,
    owners: tl.tensor,
    local: tl.tensor,
    lengths: tl.tensor,
    n: tl.tensor,
    rows: tl.tensor,
    most_bounds: tl.tensor,
    ROWS: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    live = i < n
    signed = tl.load(keys + i, mask=live, other=0)
    key = signed.to(tl.uint64, bitcast=True)
    row = tl.load(key_rows + i, mask=live, other=0)
    rule = rules + tl.load(row_features + row, mask=live, other=0) * FIELDS
    code = tl.load(rule, mask=live, other=1)
    owning = tl.load(rule + 1, mask=live, other=1).to(tl.uint64)
    block = tl.load(rule + 3, mask=live, other=0).to(tl.uint64)
    bounded = tl.load(rule + 5, mask=live, other=0)
    owner = tl.where(code == 2, _mixed(key), key) % owning
    name = key
    # A range of its own for every owner, then by modulo; the name counts from the range's begin.
    ranged = (code == 0) & (bounded == 0)
    size = tl.where(block == 0, 1, block)
    inside = ranged & (key < size * owning)
    owner = tl.where(inside, key // size, tl.where(ranged, key % owning, owner))
    name = tl.where(inside, key % size, tl.where(ranged, key // owning, name))
    begin = tl.load(rule + 4, mask=live, other=0)
    below = tl.zeros((ROWS,), tl.int64)
    start = tl.zeros((ROWS,), tl.uint64)
    b = tl.full((), 0, tl.int64)
    while b < most_bounds:
        asked = live & (b < bounded)
        bound = tl.load(bounds + begin + b, mask=asked, other=0).to(tl.uint64, bitcast=True)
        passed = asked & (bound <= key)
        below += passed.to(tl.int64)
        start = tl.where(passed, bound, start)
        b += 1
    within = (bounded > 0) & (below.to(tl.uint64) <= owning)
    owner = tl.where(within, (below - 1).to(tl.uint64), tl.where(bounded > 0, key % owning, owner))
    name = tl.where(within, key - start, tl.where(bounded > 0, key // owning, name))
    shard = owner.to(tl.int64) + tl.load(rule + 2, mask=live, other=0)
    tl.store(owners + i, shard, mask=live)
    tl.store(local + i, name.to(tl.int64, bitcast=True), mask=live)
    tl.atomic_add(lengths + shard * rows + row, 1, mask=live, sem="relaxed")


def route(
    keys: Int64[Tensor, "n"],
    key_rows: Int64[Tensor, "n"],
    row_features: Int64[Tensor, "rows"],
    rules: Int64[Tensor, "features 6"],
    bounds: Int64[Tensor, "b"],
    shards: int,
    most_bounds: int,
) -> tuple[Int64[Tensor, "n"], Int64[Tensor, "n"], Int64[Tensor, "shards * rows"]]:
    """Owners, names at their owners, and lengths by owner and row; see `routing.Router`.

    `rules` has for each feature: code, shards that own keys, empty ones before them, keys of a
    range, and where its bounds begin and how many they are.
    """
    rows = len(row_features)
    owners, local = torch.empty_like(keys), torch.empty_like(keys)
    lengths = torch.zeros(shards * rows, dtype=torch.int64, device=keys.device)
    if len(keys):
        _route[blocks(len(keys), 256)](
            *(keys, key_rows, row_features, rules, bounds, owners, local, lengths),
            *(len(keys), rows, most_bounds),
            ROWS=256,
        )
    return owners, local, lengths
