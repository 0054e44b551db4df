"""Distributes the rows of a model over ranks or servers, and its dense weights over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..core import checks
from ..core.errors import ConfigError, DtypeError, InputError, StateError
from ..launch.job_variables import server_list
from ..launch.process_group import group_settings, start_process_group
from ..launch.rank_info import rank_info
from ..ps.curve import ClientKeys
from ..ps.remote_shard import connect
from ..ps.server_tables import ServerTables
from ..ps.shard import ShardView
from ..routing.router import Router
from ..sharding.agreement import RankGroup
from ..sharding.all_to_all_tables import AllToAllTables, ShardStore
from ..sharding.exchange import WIRES, Exchange
from ..tables.multi.host_tables import HostTables
from ..tables.multi.several_tables import MultiConfig
from .embedding_modules import EmbeddingModule, ServerGroup, collections_of, ranks_of, servers_of
from .follow_plan import PlanLike, follow_plan, place_as_planned
from .model_tables import describe_model, routers_of, tables_of


def put_on_servers(
    model: nn.Module,
    collections: Sequence[EmbeddingModule],
    servers: Sequence[str],
    *,
    wire: str,
    dedup: bool,
    keys: ClientKeys | Path | str | None,
) -> None:
    """Makes every module of the model read and update rows on `servers` from now on."""
    _check_movable(model, collections)
    # All servers use one slot key per table: that of the first client.
    config = MultiConfig.of(
        {
            name: replace(table.config, slot_key=table.slot_key)
            for name, table in tables_of(model).items()
        }
    )
    configs = dict(zip(config.names, config.configs, strict=True))
    shards = connect(servers, configs, wire=WIRES[wire], keys=keys)
    group = ServerGroup(tuple(shards), config)
    routers = routers_of(model, group.count)
    for one in collections:
        names = one.store.names
        of = [config.at(name) for name in names]
        own = shards
        if names != config.names:
            own = [ShardView(shard, of, config.segment_splits) for shard in shards]
        rules = [routers[name] for name in names]
        mine = {name: configs[name] for name in names}
        one.set_store(ServerTables(own, mine, rules, dedup=dedup), servers=group)


def _check_movable(model: nn.Module, collections: Sequence[EmbeddingModule]) -> None:
    for one in collections:
        if isinstance(one.store, AllToAllTables | ServerTables):
            raise StateError("the model is distributed already; call hr.distribute once.")
        if not isinstance(one.store, HostTables):
            raise StateError(
                "the model has tables on a device or in two tiers, but servers hold rows in their "
                "own memory; distribute it before model.to('cuda'), and without keep_on_disk."
            )
    for name, table in tables_of(model).items():
        if table.size():
            raise StateError(
                f"distribute of a model with rows: table {name!r} has {table.size()}. Distribute "
                f"it first, then hr.load: every server takes the rows it owns."
            )
        if table.config.evict is not None:
            raise ConfigError(
                f"table {name!r} has the rule {table.config.evict!r}, which servers do not run; "
                f"leave evict out."
            )


def distribute(
    model: nn.Module,
    *,
    reduce: str = "mean",
    wire: str = "fp32",
    dedup: bool = True,
    servers: Sequence[str] | None = None,
    keys: ClientKeys | Path | str | None = None,
    plan: PlanLike | None = None,
) -> nn.Module:
    """Distributes a model over all processes of the job: rows over ranks, dense weights in DDP.

    A single process returns the model unchanged. Otherwise it joins the other processes of the
    launcher. Every rank owns the rows that the `dist_type` of their table assigns to it. All ranks
    make one update together: the owner of a row averages its gradients over ranks (`reduce="mean"`,
    as DDP does for dense weights) or sums them, and makes one optimizer step.

    Calls of the model are then collectives, also in eval mode: every rank must make the same calls.
    Rows and gradients are sent as `wire`: fp32, bf16 or fp16. Without `dedup`, equal ids in a batch
    are sent separately. Call it before the tables have rows, then call `hr.load`.

    With `servers`, the addresses of `hedgerow ps` processes in the order of their shards, the
    servers hold the rows. `keys` are those of `hedgerow keys new`. Every process reads and updates
    on its own: each of its updates is one optimizer step (`reduce` has no effect). The dense
    weights are still in DDP. By default the servers and keys are those of the launcher (`hedgerow
    launch --servers`, HEDGEROW_SERVERS).

    A `plan` is a result of `hr.plan`, the path of its file, or "auto". All ranks need the same
    plan, made for these tables and this number of ranks. Each rank logs what it holds. HBM_ONLY
    tables and the dense weights move to the device of the process, as with `model.to("cuda")`.

    >>> import hedgerow as hr
    >>> model = hr.EmbeddingBags([hr.Table("user", 2)])
    >>> hr.distribute(model) is model  # alone
    True
    """
    collections = _checked(model, reduce, wire, dedup)
    found = server_list(servers)
    if found is not None:
        _no_plan(plan)
        keys = found.keys if keys is None else keys
        put_on_servers(model, collections, found.addresses, wire=wire, dedup=dedup, keys=keys)
        return _dense_over_ranks(model)
    if _is_alone():
        _follow(model, plan, RankGroup())
        return model
    start_process_group()
    ranks = RankGroup(own_group())
    _check(model, collections, ranks, {"reduce": reduce, "wire": wire, "plan": _kind(plan)})
    _follow(model, plan, ranks)
    # Updates run at the end of a backward, and `hr.prefetch` may read in another thread. Reads and
    # updates have process groups of their own, separate from that of DDP. All ranks make the groups
    # in the same order.
    where = _where(collections)
    reads, updates = (Exchange(own_group(where), wire=wire) for _ in range(2))
    routers = routers_of(model, reads.ranks)
    for one in collections:
        over = _over(one, routers, reads, updates, reduce=reduce, dedup=dedup)
        one.set_store(over, ranks=ranks, together=collections)
    return _dense_over_ranks(model)


def _share_slot_keys(model: nn.Module, ranks: RankGroup) -> None:
    """Gives each table the same slot key on all ranks, that of rank 0.

    With a slot key that the user sets, repeated runs then refuse the same ids when a device is
    full. A checkpoint saves one key.
    """
    own = tables_of(model)
    keys = ranks.tell({name: table.slot_key for name, table in own.items()})[0]
    for name, table in own.items():
        table.use_slot_key(keys[name])


def _checked(model: nn.Module, reduce: str, wire: str, dedup: bool) -> list[EmbeddingModule]:
    """Returns the modules with tables of the model, after checking the arguments."""
    if not isinstance(model, nn.Module):
        raise DtypeError(f"distribute of a {type(model).__name__}; pass an nn.Module.")
    checks.choice("distribute", "reduce", reduce, ("mean", "sum"))
    checks.choice("distribute", "wire", wire, WIRES)
    checks.switch("distribute", "dedup", dedup)
    collections = collections_of(model)
    if not collections:
        raise InputError("distribute of a model without EmbeddingBags or Embeddings.")
    return collections


def _follow(model: nn.Module, plan: PlanLike | None, ranks: RankGroup) -> None:
    if plan is not None:
        place_as_planned(model, follow_plan(model, plan, ranks))
    _share_slot_keys(model, ranks)


def _no_plan(plan: PlanLike | None) -> None:
    if plan is not None:
        raise ConfigError(
            "distribute was given a plan and servers, but a plan applies to tables in the "
            "processes of the job. Leave one of them out."
        )


def _kind(plan: PlanLike | None) -> str:
    """Returns what ranks must agree on before they read a plan."""
    return "none" if plan is None else "auto" if plan == "auto" else "given"


def _is_alone() -> bool:
    return (dist.get_world_size() if dist.is_initialized() else rank_info().world_size) == 1


def _dense_over_ranks(model: nn.Module) -> nn.Module:
    if _is_alone() or not any(p.requires_grad for p in model.parameters()):
        return model
    start_process_group()
    # `find_unused_parameters` keeps DDP from regrouping gradients after its first step. With three
    # or more ranks the last bits of a sum depend on the groups, so a resumed run would differ.
    return DistributedDataParallel(model, find_unused_parameters=True)


def workers_of(model: nn.Module) -> RankGroup:
    """Returns the processes that train a model together, one step at a time.

    These are the ranks that share its rows, or all workers of the job if servers hold the rows. The
    first call for a model on servers is a collective of all workers.

    >>> import hedgerow as hr
    >>> workers_of(hr.EmbeddingBags([hr.Table("user", 2)]))
    Ranks(rank 0 of 1)
    """
    group = servers_of(model)
    if group is None:
        return ranks_of(model)
    if group.workers is None:
        if not _is_alone():
            start_process_group()
        group.workers = RankGroup() if _is_alone() else RankGroup(own_group())
    return group.workers


def _where(collections: Sequence[EmbeddingModule]) -> torch.device:
    """Returns the device that has the rows of all modules. Raises if there are several devices."""
    found = {one.store.device for one in collections}
    if len(found) > 1:
        raise StateError(
            f"the model has tables on {', '.join(sorted(map(str, found)))}; move all of them to "
            f"one device with model.to(...)."
        )
    return found.pop()


def own_group(device: torch.device = checks.CPU) -> dist.ProcessGroup:
    """Returns a new group of all ranks, whose calls do not mix with those of other groups.

    It moves tensors of host memory, or also those of a device if `device` is not the CPU.
    """
    settings = group_settings()
    patience = timedelta(seconds=settings.timeout_s)
    backend = "gloo" if device == checks.CPU else settings.backend
    group = dist.new_group(backend=backend, timeout=patience)
    if not isinstance(group, dist.ProcessGroup):
        raise StateError("this process is no member of the job's group; start it with the others.")
    return group


def _over(
    one: EmbeddingModule,
    routers: dict[str, Router],
    reads: Exchange,
    updates: Exchange,
    *,
    reduce: str,
    dedup: bool,
) -> AllToAllTables:
    if isinstance(one.store, AllToAllTables | ServerTables):
        raise StateError("the model is distributed already; call hr.distribute once.")
    own = [routers[name] for name in one.store.names]
    local = cast("ShardStore", one.store)  # a store of this process has every verb
    return AllToAllTables(local, own, reads, reduce=reduce, dedup=dedup, updates=updates)


def _check(
    model: nn.Module,
    collections: Sequence[EmbeddingModule],
    ranks: RankGroup,
    settings: dict[str, str],
) -> None:
    """Raises unless settings and model are the same on all ranks and the model has no rows."""

    def describe() -> dict[str, str]:
        if any(one.ranks.count > 1 for one in collections):
            raise StateError("the model is distributed already; call hr.distribute once.")
        for name, table in tables_of(model).items():
            if table.size():
                raise StateError(
                    f"distribute of a model with rows: table {name!r} has {table.size()}. "
                    f"Distribute it first, then hr.load: every rank takes the rows it owns."
                )
        return settings | describe_model(model, collections)

    told = ranks.together("distribute", describe)
    for rank, words in enumerate(told):
        for name in {**told[0], **words}:
            if words.get(name) != told[0].get(name):
                raise ConfigError(
                    f"{name}: {words.get(name, 'nothing')} on rank {rank} and "
                    f"{told[0].get(name, 'nothing')} on rank 0. Build the same model on every "
                    f"rank, and distribute it with the same arguments."
                )
