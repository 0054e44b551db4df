"""Models with rules of room, trained over ranks, and what stays of them and counts in them."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist

import hedgerow as hr
from hedgerow.core.clock import ManualClock

LFU = hr.Lfu(1000, half_life=100)


def made(rule: hr.Lru | hr.Lfu) -> hr.EmbeddingBags:
    """One table, whose clock stands still: all steps are in one second."""
    table = hr.Table("t", 1, evict=rule)
    return hr.EmbeddingBags([table], optimizer=hr.Sgd(lr=1.0), clock=ManualClock(2_000_000_000))


def train(bags: hr.EmbeddingBags, steps: list[list[int]]) -> None:
    """One step of each list of ids, of which every rank has its share."""
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    for ids in steps:
        batch = hr.IdBatch.from_lists({"t": [ids[rank::ranks]]})
        bags(batch)["t"].sum().backward()


def ids_of(bags: hr.EmbeddingBags) -> list[int]:
    """The ids that have rows here."""
    return [int(key) for part in bags.table("t").scan() for key in part.ids]


def uses_of(bags: hr.EmbeddingBags) -> dict[int, float]:
    """How often each of them was used."""
    ids = ids_of(bags)
    return dict(zip(ids, bags.table("t").uses(torch.tensor(ids).long()).tolist(), strict=True))


def save(folder: Path, rule: hr.Lru | hr.Lfu, steps: list[list[int]]) -> dict[int, float]:
    """Trains over all ranks and saves; the counts of this rank's rows."""
    bags = made(rule)
    hr.distribute(bags)
    train(bags, steps)
    hr.save(bags, folder)
    return uses_of(bags) if isinstance(rule, hr.Lfu) else {}


def held(folder: Path, steps: list[list[int]]) -> dict[int, float]:
    """As `save`, each two steps as one update that waits."""
    bags = made(LFU)
    hr.distribute(bags)
    for first in range(0, len(steps), 2):
        with hr.hold_updates(bags) as holding:
            train(bags, steps[first : first + 1])
            holding.row_gradients()
            train(bags, steps[first + 1 : first + 2])
    hr.save(bags, folder)
    return uses_of(bags)


def load(folder: Path, rule: hr.Lru | hr.Lfu, more: list[list[int]]) -> dict[int, float]:
    """Goes on with as many ranks as there are."""
    bags = made(rule)
    hr.distribute(bags)
    hr.load(bags, folder)
    train(bags, more)
    return uses_of(bags)
