"""A script under `hedgerow launch --servers`: trains on servers, and proves every row in the end.

Arguments: a folder, in which a file `enough` says that 30 steps more will do, or `--fail`.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import TextIO

import torch
import torch.distributed as dist

import hedgerow as hr
from hedgerow.launch.process_group import process_group
from hedgerow.nn.embedding_modules import collections_of, servers_of

LAST_STEPS, MOST_STEPS = 30, 100_000
RATE = 0.5
DIMS = {"item": 3, "user": 2}


def say(line: str, to: TextIO = sys.stdout) -> None:
    """As a user's script prints."""
    to.write(f"{line}\n")
    to.flush()


def batch(rank: int, step: int) -> tuple[dict[str, list[list[int]]], float]:
    """Ids of a step, some of them of both ranks and twice, and a gradient without rounding."""
    rng = random.Random(f"{rank} {step}")
    lists = {name: [rng.choices(range(60), k=rng.randint(0, 4)) for _ in range(8)] for name in DIMS}
    return lists, rng.randint(-8, 8) / 16


def train(model: torch.nn.Module, rank: int, folder: Path) -> int:
    """Steps that were made."""
    enough, last = folder / "enough", MOST_STEPS
    for step in range(MOST_STEPS):
        if last == MOST_STEPS and enough.exists():
            last = step + LAST_STEPS
        if step == last:
            return step
        lists, gradient = batch(rank, step)
        out = model(hr.IdBatch.from_lists(lists))
        (gradient * sum(value.sum() for value in out.values())).backward()
        if step == 5:
            say("trains")
    raise AssertionError("nobody said that it is enough")


def wanted(steps: list[int]) -> dict[str, dict[int, float]]:
    """The value of every column of every row, whatever order updates came in."""
    rows: dict[str, dict[int, float]] = {name: {} for name in DIMS}
    for rank, count in enumerate(steps):
        for step in range(count):
            lists, gradient = batch(rank, step)
            for name, bags in lists.items():
                for key in (key for bag in bags for key in bag):
                    rows[name][key] = rows[name].get(key, 0.0) - RATE * gradient
    return rows


def main() -> None:
    tables = [hr.Table(name, dim) for name, dim in DIMS.items()]
    bags = hr.EmbeddingBags(tables, init=hr.Zeros(), optimizer=hr.Sgd(lr=RATE))
    model = hr.distribute(bags)
    with process_group() as me:
        if "--fail" in sys.argv:
            say("about to fail", sys.stderr)
            if me.rank == 1:
                sys.exit(7)
        steps: list[int] = [0] * me.world_size
        dist.all_gather_object(steps, train(model, me.rank, Path(sys.argv[1])))
        store = collections_of(model)[0].store
        for k, (name, rows) in enumerate(wanted(steps).items()):
            found = {}
            for part in store.table(k).scan():
                for key, row in zip(part.ids.tolist(), part.rows.tolist(), strict=True):
                    assert key not in found
                    found[key] = row
            assert found == {key: [value] * DIMS[name] for key, value in rows.items()}, name
        dist.barrier()
        group = servers_of(model)
        assert group is not None
        restarts = [shard.counters.read("server_restarts") for shard in group.shards]
        say(f"right after {sum(steps)} steps and {restarts} restarts")


if __name__ == "__main__":
    main()
