"""Kernels that count recently seen ids, and draw the random numbers of admission by chance.

A cell holds 40 bits of an id's hash, 16 bits of the turn of the time window in which the id was
last seen, and 8 bits of its count. A cell whose turn is older than the window counts as empty, so
nothing is cleared when the window moves.

An id has two homes of LANES cells each, searched in the same order as the slots of a table. Cells
change by compare-and-swap. A call must not repeat an id. One id in thirty billion shares its 40
bits with another id in one of its homes, and then shares its count.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.hashing import signed64
from ..core.shapes import Bool, Float32, Int64
from .layout import Cells
from .placement import HOME_LANES, LANES, mixed
from .toolchain import blocks, jit, tl

NOWHERE = tl.constexpr(1 << 20)  # larger than any rank


@jit
def _homes(
    ids: tl.tensor, salt: tl.tensor, state: tl.tensor, homes: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Returns two homes of each id, and the 40 bits of its hash that its cell stores."""
    salted = ids.to(tl.uint64, bitcast=True) ^ salt.to(tl.int64).to(tl.uint64, bitcast=True)
    hashed = mixed(salted, tl.load(state + 3), tl.load(state + 4), tl.load(state + 5))
    count = homes.to(tl.uint64)
    first = ((hashed >> 32) * count) >> 32
    second = ((hashed & 0xFFFFFFFF) * count) >> 32
    second = tl.where(second == first, tl.where(first + 1 < count, first + 1, 0), second)
    nothing = tl.zeros_like(ids)
    label = mixed(hashed, nothing, nothing, nothing) >> 24
    return (
        first.to(tl.int64, bitcast=True),
        second.to(tl.int64, bitcast=True),
        label.to(tl.int64, bitcast=True),
    )


@jit
def _alive(line: tl.tensor, turn: tl.tensor, kept: tl.tensor) -> tl.tensor:
    """Returns which cells hold a count that is still inside the window."""
    return ((line & 0xFF) != 0) & (((turn - (line >> 8)) & 0xFFFF) <= kept)


@jit
def _hit(line: tl.tensor, label: tl.tensor, alive: tl.tensor) -> tl.tensor:
    """Returns the lane that counts the id, or -1."""
    lanes = tl.arange(0, LANES)[None, :]
    same = alive & (((line >> 24) & 0xFFFFFFFFFF) == label[:, None])
    return tl.max(tl.where(same, lanes, -1), axis=1)


@jit
def _first_free(alive: tl.tensor, SECOND: tl.constexpr) -> tl.tensor:
    """Returns the rank of the first free lane."""
    lanes = tl.arange(0, LANES)
    beyond = HOME_LANES + 2 * lanes + SECOND
    rank = tl.where(lanes < HOME_LANES, lanes + SECOND * HOME_LANES, beyond)[None, :]
    return tl.min(tl.where(alive, NOWHERE, rank), axis=1)


@jit
def _lane_of(line: tl.tensor, lane: tl.tensor) -> tl.tensor:
    """Returns the content of one lane of each line."""
    lanes = tl.arange(0, LANES)[None, :]
    return tl.sum(tl.where(lanes == lane[:, None], line, 0), axis=1)


@jit
def _place(
    cells: tl.tensor,
    todo: tl.tensor,
    first: tl.tensor,
    second: tl.tensor,
    label: tl.tensor,
    turn: tl.tensor,
    kept: tl.tensor,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Returns each id's cell or a free one (-1: none), its content, and whether it is the id's."""
    lanes = tl.arange(0, LANES)[None, :]
    one = tl.load(cells + first[:, None] * LANES + lanes, mask=todo[:, None], volatile=True)
    two = tl.load(cells + second[:, None] * LANES + lanes, mask=todo[:, None], volatile=True)
    alive_one, alive_two = _alive(one, turn, kept), _alive(two, turn, kept)
    hit_one, hit_two = _hit(one, label, alive_one), _hit(two, label, alive_two)
    rank, other = _first_free(alive_one, 0), _first_free(alive_two, 1)
    counted = (hit_one >= 0) | (hit_two >= 0)
    in_first = tl.where(counted, hit_one >= 0, rank < other)
    best = tl.minimum(rank, other)
    home = tl.where(in_first, best, best - HOME_LANES)
    free = tl.where(home < HOME_LANES, home, (best - HOME_LANES) // 2)
    lane = tl.where(counted, tl.maximum(hit_one, hit_two), free)
    lane = tl.where(counted & (hit_one >= 0), hit_one, lane)
    nowhere = ~counted & (best >= NOWHERE)
    held = tl.where(in_first, _lane_of(one, lane), _lane_of(two, lane))
    place = tl.where(in_first, first, second) * LANES + lane
    return tl.where(todo & ~nowhere, place, -1), held, counted & todo


@jit(do_not_specialize=["n", "homes", "kept", "salt"])
def _counts_of(
    ids: tl.tensor,
    asked: tl.tensor,
    cells: tl.tensor,
    state: tl.tensor,
    counts: tl.tensor,
    n: tl.tensor,
    homes: tl.tensor,
    kept: tl.tensor,
    salt: tl.tensor,
    ROWS: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    todo = tl.load(asked + i, mask=i < n, other=0).to(tl.int1)
    key = tl.load(ids + i, mask=todo, other=0)
    first, second, label = _homes(key, salt, state, homes)
    _, held, counted = _place(cells, todo, first, second, label, tl.load(state), kept)
    tl.store(counts + i, tl.where(counted, held & 0xFF, 0), mask=i < n)


@jit(do_not_specialize=["n", "homes", "kept", "most", "salt"])
def _add_counts(
    ids: tl.tensor,
    asked: tl.tensor,
    added: tl.tensor,
    cells: tl.tensor,
    state: tl.tensor,
    stored: tl.tensor,
    n: tl.tensor,
    homes: tl.tensor,
    kept: tl.tensor,
    most: tl.tensor,
    salt: tl.tensor,
    ROWS: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    wanted = tl.load(asked + i, mask=i < n, other=0).to(tl.int1)
    key = tl.load(ids + i, mask=wanted, other=0)
    more = tl.load(added + i, mask=wanted, other=0)
    first, second, label = _homes(key, salt, state, homes)
    turn = tl.load(state)
    done = i != i
    brought = i != i  # updated to the present turn
    todo = wanted
    while tl.max(todo.to(tl.int32), axis=0) > 0:
        place, held, counted = _place(cells, todo, first, second, label, turn, kept)
        todo = todo & (place >= 0)
        count = tl.minimum(tl.where(counted, held & 0xFF, 0) + tl.minimum(more, most), most)
        new = (label << 24) | ((turn & 0xFFFF) << 8) | count
        if tl.max(todo.to(tl.int32), axis=0) > 0:
            # The swap has no mask: lanes without work swap a value for itself.
            expected = tl.where(todo, held, new)
            at = tl.where(todo, place, first * LANES)
            old = tl.atomic_cas(cells + at, expected, new, sem="relaxed")
            won = todo & (old == expected)
            is_present = counted & (((held >> 8) & 0xFFFF) == (turn & 0xFFFF))
            brought = brought | (won & ~is_present)
            done = done | won
            todo = todo & ~won
    tl.store(stored + i, done, mask=i < n)
    news, lost = tl.sum(brought.to(tl.int64)), tl.sum((wanted & ~done).to(tl.int64))
    if news + lost > 0:
        tl.atomic_add(state + 1, news, sem="relaxed")
        tl.atomic_add(state + 2, lost, sem="relaxed")


def counts_of(
    filter: Cells, ids: Int64[Tensor, "n"], asked: Bool[Tensor, "n"], salt: int
) -> Int64[Tensor, "n"]:
    """Returns the count of each id with `asked`, 0 for the others."""
    counts = torch.zeros_like(ids)
    if len(ids):
        _counts_of[blocks(len(ids), 32)](
            *(ids, asked, filter.cells, filter.state, counts, len(ids)),
            *(filter.homes, filter.kept, salt),
            ROWS=32,
        )
    return counts


def add_counts(
    filter: Cells,
    ids: Int64[Tensor, "n"],
    asked: Bool[Tensor, "n"],
    added: Int64[Tensor, "n"],
    salt: int,
) -> Bool[Tensor, "n"]:
    """Adds `added` to the count of each id with `asked`. The ids must be distinct.

    Returns False for an id without a free cell.
    """
    stored = torch.zeros_like(asked)
    if len(ids):
        _add_counts[blocks(len(ids), 32)](
            *(ids, asked, added, filter.cells, filter.state, stored, len(ids)),
            *(filter.homes, filter.kept, filter.most, salt),
            ROWS=32,
        )
    return stored


_CHANCE = 2  # the Philox stream; first values use 0


@jit(do_not_specialize=["n", "seed", "tag"])
def _draws(
    ids: tl.tensor,
    numbers: tl.tensor,
    out: tl.tensor,
    n: tl.tensor,
    seed: tl.tensor,
    tag: tl.tensor,
    ROWS: tl.constexpr,
) -> None:
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    key = tl.load(ids + i, mask=i < n, other=0)
    number = tl.load(numbers + i, mask=i < n, other=0)
    low, high = (key & 0xFFFFFFFF).to(tl.uint32), (key >> 32).to(tl.uint32)
    step = (tl.zeros_like(key) + tag).to(tl.uint32)
    word, _, _, _ = tl.philox(seed.to(tl.int64), low, high, number.to(tl.uint32), step)
    tl.store(out + i, (word >> 8).to(tl.float32) * (1.0 / 16777216.0), mask=i < n)


def draws(
    ids: Int64[Tensor, "n"], numbers: Int64[Tensor, "n"], seed: int, step: int
) -> Float32[Tensor, "n"]:
    """Returns a number in [0, 1) for each id, its draw number and this step."""
    out = torch.empty(len(ids), dtype=torch.float32, device=ids.device)
    if len(ids):
        tag = (_CHANCE | step << 8) & 0xFFFFFFFF
        _draws[blocks(len(ids), 128)](ids, numbers, out, len(ids), signed64(seed), tag, ROWS=128)
    return out
