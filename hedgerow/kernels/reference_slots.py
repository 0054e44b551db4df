"""Plain twins of the kernels that go through all slots."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.shapes import Int64
from .layout import EMPTY, ERASED, KEYS, LANES, NEWBORN, SCORE, TIMES, Arrays
from .reference import insert_one

__all__ = ["erase_if", "rehash", "select"]


def _chosen(table: Arrays, low: int, high: int) -> list[int]:
    taken, times = table.taken().tolist(), table.line(TIMES).tolist()
    words = table.index[:, TIMES].flatten().tolist()
    return [
        slot
        for slot, time in enumerate(times)
        if taken[slot] and words[slot] >= 0 and low <= time < high
    ]


def select(
    table: Arrays, low: int = 0, high: int = SCORE
) -> tuple[Int64[Tensor, "slots"], Int64[Tensor, "1"]]:
    """The slots of rows of a time in low..high-1, and how many; what follows is -1."""
    chosen, out = _chosen(table, low, high), torch.full((len(table.values),), -1)
    out[: len(chosen)] = torch.tensor(chosen, dtype=torch.int64)
    return out, torch.tensor([len(chosen)])


def erase_if(table: Arrays, low: int = 0, high: int = SCORE) -> Int64[Tensor, "1"]:
    """Takes out the rows of one table of a time in low..high-1 that nobody holds; how many."""
    gone = [s for s in _chosen(table, low, high) if table.pins is None or not int(table.pins[s])]
    for slot in gone:
        table.index[slot // LANES, :, slot % LANES] = NEWBORN
        own = slot // LANES == table.buckets
        table.index[slot // LANES, KEYS, slot % LANES] = EMPTY if own else ERASED
    return torch.tensor([len(gone)])


def rehash(table: Arrays, larger: Arrays) -> Int64[Tensor, "slots"]:
    """Copies all rows into an empty table, with times, scores and pins; their new slots."""
    moved = torch.full((len(table.values),), -1)
    for old in table.taken().nonzero()[:, 0]:
        slot, _ = insert_one(larger, int(table.ids(old.view(1))))
        moved[old] = slot
        if slot >= 0:
            place = slot // LANES, slice(KEYS + 1, None), slot % LANES
            larger.index[place] = table.index[int(old) // LANES, KEYS + 1 :, int(old) % LANES]
            larger.values[slot] = table.values[old]
            if larger.pins is not None and table.pins is not None:
                larger.pins[slot] = table.pins[old]
    return moved
