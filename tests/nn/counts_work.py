"""What a process counts while a model steps: routings of keys, and keys that tables search for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

import hedgerow as hr
from hedgerow.nn.embedding_modules import EmbeddingModule, collections_of
from hedgerow.nn.row_updates import RowUpdates
from hedgerow.tables.module_store import FeatureBags
from hedgerow.tables.multi.host_tables import HostBags, HostCells, HostTables
from hedgerow.tables.multi.routed_keys import KeyRouter

from . import max_pooling_work as work

KINDS = (
    "plain",
    "clipped",
    "held",
    "accumulated",
    "modules",
    "some features",
    "some features accumulated",
    "clipped accumulated",
    "norm",
    "norm of some features",
    "norm accumulated",
    "norm between",
    "scaled",
    "learnt weights",
    "admitted",
    "modules norm accumulated",
)
PLAIN = ("a", "a2", "b", "c")
SOME = ("a2", "b")  # one of two features of a table, the only one of another, none of the third


def model(kind: str, *, alike: bool = False) -> nn.ModuleList:
    """One module, or two; the first has a table with two features.

    The tables of a module differ in width, unless they are to be `alike`.
    """
    clip = hr.ClipRow(0.5) if "clipped" in kind else None
    dims = (2, 2, 2) if alike else (3, 1, 2)
    made = [work.model(clip=clip, dims=dims)]
    if kind in ("learnt weights", "admitted"):
        admit = hr.Chance(0.7) if kind == "admitted" else None
        tables = [
            hr.Table("a", dims[0], features=["a", "a2"], admit=admit),
            hr.Table("b", dims[1], admit=admit),
            hr.Table("c", dims[2], pooling="mean", admit=admit),
        ]
        made = [hr.EmbeddingBags(tables, optimizer=hr.Sgd(lr=0.5), seed=1)]
    if "modules" in kind:
        dim = 2 if alike else 3
        tables = [hr.Table("d", 2, features=["a", "c"]), hr.Table("e", dim, features=["b"])]
        made.append(hr.EmbeddingBags(tables, optimizer=hr.Sgd(lr=0.5), seed=1))
    return nn.ModuleList(made)


def step(modules: nn.ModuleList, kind: str, number: int, rank: int = 0, ranks: int = 1) -> int:
    """One update of each module; how many lookups it made."""
    lookups = 0
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0) if kind == "scaled" else None

    def backward(batch: int) -> None:
        nonlocal lookups
        for one in modules:
            lookups += 1
            given = work.batch(batch, rank, ranks)
            if kind == "learnt weights":
                given = replace(given, weights=torch.ones(len(given.values)).requires_grad_())
            vectors = one(given)
            wanted = SOME if "some features" in kind else PLAIN
            used = [v for name, v in vectors.items() if name in wanted]
            loss = torch.stack([(v.square() + v).sum() for v in used]).sum()
            (loss if scaler is None else scaler.scale(loss)).backward()

    batches = 3 if "accumulated" in kind else 2 if kind == "norm between" else 1
    if batches == 1 and kind not in ("held", "scaled") and "norm" not in kind:
        backward(number)
        return lookups
    with hr.hold_updates(modules, scaler) as held:
        for batch in range(batches):
            backward(number + batch)
            if kind == "norm between":
                held.row_gradients()
        if "norm" in kind:
            held.clip_grad_norm_(2.0)
    return lookups


@dataclass(slots=True)
class Counts:
    """Lookups of modules, and what they cost."""

    lookups: int = 0
    routings: int = 0
    asked: int = 0  # keys that lookups asked of the tables of this process
    searched: int = 0  # keys that these tables searched for
    by_lookups: int = 0  # of those, the ones that lookups searched for


def searched(modules: nn.ModuleList) -> int:
    """Keys that all tables of this process have searched for."""
    tables = [table for one in collections_of(modules) for table in one.store.tables]
    return sum(table.core.reader(0).searched() for table in tables)


def counted(modules: nn.ModuleList, run: Callable[[], int]) -> Counts:
    """What happens while `run` makes lookups and updates."""
    found = Counts()

    def noted(owner: Any, name: str, keys: Callable[[Any], int]) -> Any:
        plain: Any = getattr(owner, name)

        def reading(self: Any, first: Any, *args: Any, **settings: Any) -> Any:
            found.asked += keys(first)
            already = searched(modules)
            read = plain(self, first, *args, **settings)
            found.by_lookups += searched(modules) - already
            return read

        return mock.patch.object(owner, name, reading)

    before = searched(modules)
    with (
        mock.patch.object(KeyRouter, "pack", autospec=True, side_effect=KeyRouter.pack) as routed,
        noted(HostBags, "read", lambda bags: sum(map(len, _ids_of(bags)))),
        noted(HostCells, "read", len),  # those that ranks ask of this one
        noted(HostTables, "lookup", lambda keys: len(keys.ids)),
    ):
        found.lookups = run()
    found.routings, found.searched = routed.call_count, searched(modules) - before
    return found


def _ids_of(bags: FeatureBags) -> list[torch.Tensor]:
    return [bags.ids_of(i) for i in range(len(bags.group.features))]


def steps_over_ranks(kind: str) -> Counts:
    """On every rank: three updates of a model whose rows are spread over the ranks."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    modules = model(kind)
    hr.distribute(modules, reduce="sum")
    return counted(modules, lambda: sum(step(modules, kind, 4 * n, rank, ranks) for n in range(3)))


def updates_of(modules: nn.ModuleList) -> list[int]:
    """Updates that each module made."""
    return [one.updates.step for one in modules if isinstance(one, EmbeddingModule)]


def rows_of(modules: nn.ModuleList) -> dict[tuple[int, str, int], torch.Tensor]:
    """Rows by module, table and id: of this process, or of all servers."""
    found: dict[tuple[int, str, int], torch.Tensor] = {}
    for number, one in enumerate(collections_of(modules)):
        store: Any = one.store
        for k, name in enumerate(store.names):
            for part in store.table(k).scan(50):
                for i, key in enumerate(part.ids.tolist()):
                    found[number, name, key] = part.rows[i].clone()
    return found


def forgetting() -> Any:
    """Updates are told their keys alone: every store finds and routes them again."""
    plain = RowUpdates._joined

    def joined(self: RowUpdates, waiting: Any) -> Any:
        at, grads = plain(self, waiting)
        return getattr(at, "keys", at), grads

    return mock.patch.object(RowUpdates, "_joined", joined)


def rows_over_ranks(kind: str, forgets: bool) -> dict[tuple[int, str, int], torch.Tensor]:
    """On every rank: the rows that it owns after three updates."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    modules = model(kind)
    hr.distribute(modules, reduce="sum")
    with forgetting() if forgets else nullcontext():
        for n in range(3):
            step(modules, kind, 4 * n, rank, ranks)
    return rows_of(modules)
