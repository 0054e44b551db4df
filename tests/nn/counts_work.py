"""What a process counts while a model steps: routings of keys, and keys that tables search for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

import hedgerow as hr
from hedgerow.nn.collection import Collection, collections_of
from hedgerow.tables.multi.by_owner import ByOwner
from hedgerow.tables.multi.host_cells import HostCells

from . import max_pooling_work as work

KINDS = ("plain", "clipped", "held", "accumulated", "modules")


def model(kind: str, *, alike: bool = False) -> nn.ModuleList:
    """One module, or two; the first has a table with two features.

    The tables of a module differ in width, unless they are to be `alike`.
    """
    clip = hr.ClipRow(0.5) if kind == "clipped" else None
    made = [work.model(clip=clip, dims=(2, 2, 2) if alike else (3, 1, 2))]
    if kind == "modules":
        dim = 2 if alike else 3
        tables = [hr.Table("d", 2, features=["a", "c"]), hr.Table("e", dim, features=["b"])]
        made.append(hr.EmbeddingBags(tables, optimizer=hr.Sgd(lr=0.5), seed=1))
    return nn.ModuleList(made)


def step(modules: nn.ModuleList, kind: str, number: int, rank: int = 0, ranks: int = 1) -> int:
    """One update of each module; how many lookups it made."""
    lookups = 0

    def backward(batch: int) -> None:
        nonlocal lookups
        for one in modules:
            lookups += 1
            vectors = one(work.batch(batch, rank, ranks))
            torch.stack([(v.square() + v).sum() for v in vectors.values()]).sum().backward()

    if kind in ("held", "accumulated"):
        with hr.hold_updates(modules):
            for batch in range(1 if kind == "held" else 3):
                backward(number + batch)
    else:
        backward(number)
    return lookups


@dataclass(slots=True)
class Counts:
    """Lookups of modules, and what they cost."""

    lookups: int = 0
    routings: int = 0
    asked: int = 0  # keys that lookups asked of the tables of this process
    searched: int = 0  # keys that these tables searched for


def searched(modules: nn.ModuleList) -> int:
    """Keys that all tables of this process have searched for."""
    tables = [table for one in collections_of(modules) for table in one.store.tables]
    return sum(table.core.reader(0).searched() for table in tables)


def counted(modules: nn.ModuleList, run: Callable[[], int]) -> Counts:
    """What happens while `run` makes lookups and updates."""
    found, read = Counts(), HostCells.read

    def reading(self: HostCells, ids: Any, *args: Any, **settings: Any) -> Any:
        found.asked += len(ids)  # those that ranks ask of this one
        return read(self, ids, *args, **settings)

    before = searched(modules)
    with (
        mock.patch.object(ByOwner, "pack", autospec=True, side_effect=ByOwner.pack) as routed,
        mock.patch.object(HostCells, "read", reading),
    ):
        found.lookups = run()
    found.routings, found.searched = routed.call_count, searched(modules) - before
    return found


def steps_over_ranks(kind: str) -> Counts:
    """On every rank: three updates of a model whose rows are spread over the ranks."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    modules = model(kind)
    hr.distribute(modules, reduce="sum")
    return counted(modules, lambda: sum(step(modules, kind, 4 * n, rank, ranks) for n in range(3)))


def updates_of(modules: nn.ModuleList) -> list[int]:
    """Updates that each module made."""
    return [one.updates.step for one in modules if isinstance(one, Collection)]
