"""Plain torch twins of what admission asks kernels for: counts of ids, and draws."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.hashing import signed64
from ..core.shapes import Bool, Float32, Int64
from .layout import HOME_LANES, LANES, Cells, mixed
from .reference import philox

__all__ = ["add_counts", "counts_of", "draws"]

_ALL = 2**64 - 1


def _places(filter: Cells, id_: int, salt: int) -> tuple[list[int], int]:
    """The cells an id may have, in the order in which they are taken, and its label."""
    add, by_1, by_2 = (word & _ALL for word in filter.state[3:].tolist())
    hashed = mixed((id_ ^ salt) & _ALL, add, by_1, by_2)
    first = (hashed >> 32) * filter.homes >> 32
    second = (hashed & (2**32 - 1)) * filter.homes >> 32
    if second == first:
        second = (first + 1) % filter.homes
    homes = [first * LANES, second * LANES]
    places = [home + lane for home in homes for lane in range(HOME_LANES)]
    places += [home + lane for lane in range(HOME_LANES, LANES) for home in homes]
    return places, mixed(hashed) >> 24


def _find(filter: Cells, id_: int, salt: int) -> tuple[int, int, bool]:
    """The cell of an id or the one it would take (-1: none), its count, and if it is its own."""
    places, label = _places(filter, id_, salt)
    turn, free = int(filter.state[0]), -1
    for place in places:
        cell = int(filter.cells[place]) & _ALL
        alive = cell & 0xFF and (turn - (cell >> 8)) & 0xFFFF <= filter.kept
        if alive and cell >> 24 == label:
            return place, cell & 0xFF, True
        if not alive and free < 0:
            free = place
    return free, 0, False


def counts_of(
    filter: Cells, ids: Int64[Tensor, "n"], asked: Bool[Tensor, "n"], salt: int
) -> Int64[Tensor, "n"]:
    """How often each asked id was counted; 0 for the others."""
    pairs = zip(ids.tolist(), asked.tolist(), strict=True)
    counts = [_find(filter, id_, salt)[1] if ask else 0 for id_, ask in pairs]
    return torch.tensor(counts, dtype=torch.int64)


def add_counts(
    filter: Cells,
    ids: Int64[Tensor, "n"],
    asked: Bool[Tensor, "n"],
    added: Int64[Tensor, "n"],
    salt: int,
) -> Bool[Tensor, "n"]:
    """Counts each asked id, which must differ, `added` times more; False where it has no cell."""
    stored = torch.zeros(len(ids), dtype=torch.bool)
    for i, (id_, more) in enumerate(zip(ids.tolist(), added.tolist(), strict=True)):
        if not bool(asked[i]):
            continue
        place, before, own = _find(filter, id_, salt)
        if place < 0:
            filter.state[2] += 1
            continue
        turn = int(filter.state[0]) & 0xFFFF
        present = own and (int(filter.cells[place]) >> 8) & 0xFFFF == turn
        filter.state[1] += not present
        count = min(filter.most, before + min(more, filter.most))
        cell = _places(filter, id_, salt)[1] << 24 | turn << 8 | count
        filter.cells[place] = signed64(cell)
        stored[i] = True
    return stored


def draws(
    ids: Int64[Tensor, "n"], numbers: Int64[Tensor, "n"], seed: int, step: int
) -> Float32[Tensor, "n"]:
    """A number in [0, 1) for every id and its `numbers`-th question at this step."""
    tag = torch.full_like(ids, (2 | step << 8) & 0xFFFFFFFF)
    return (philox(ids, numbers, tag, seed)[0] >> 8).float() * 2.0**-24
