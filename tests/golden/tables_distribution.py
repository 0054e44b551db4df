"""Vectors of tables spread over ranks, and of the partitioned flow."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hedgerow.core.ids import Ragged
from hedgerow.monolith.layouts import FeatureConfigs, LayoutFeature, OutConfig, Slice
from hedgerow.monolith.tables.partitioned import LookedUpBatch, PartitionedTables, by_list
from hedgerow.monolith.tables.partitioned_shards import LocalShards, RankShards, ServerShards
from hedgerow.ops.reorder import fused_reorder_by_indices
from hedgerow.ps.shard import LocalShard
from hedgerow.routing.router import Router
from hedgerow.sharding.all_to_all_tables import AllToAllTables
from hedgerow.sharding.exchange import LocalExchange
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.initializers import Zeros
from hedgerow.tables.multi.host_tables import HostTables
from hedgerow.tables.multi.routed_keys import KeyRouter, RoutedKeys
from hedgerow.tables.optimizers import Sgd
from hedgerow.tables.store import TableKeys

from .runner import Case, take
from .tables_area import AREA, close, original

# ---- alltoall


def _keys(tables: list[list[int]]) -> TableKeys:
    splits = [0]
    for ids in tables:
        splits.append(splits[-1] + len(ids))
    ids = [i for table in tables for i in table]
    return TableKeys(torch.tensor(ids, dtype=torch.int64), tuple(splits))


def _flat(tables: list[Any]) -> Tensor:
    return torch.cat([torch.tensor(rows, dtype=torch.float32).reshape(-1) for rows in tables])


@AREA.handles("alltoall", "cases")
def tables_over_ranks(case: Case) -> None:
    if isinstance(case.value["ranks"], str):
        _any_number_of_ranks(case)
        return
    c = case.take(
        (
            *("id", "ranks", "optimizer", "config", "dims", "lrs", "ids", "order"),
            *("grads_step1", "grads_step2", "scale_step2"),
            *("packed", "forward_step1", "forward_step2", "final_rows_by_table"),
        )
    )
    assert c["order"].startswith("an owner applies source ranks in ascending order")
    optimizer = original(c["optimizer"], c["config"])
    configs = {
        f"table{k:04}": TableConfig("golden", (Segment(dim, Zeros(), optimizer),))
        for k, dim in enumerate(c["dims"])
    }
    rates = [rate for of_table in c["lrs"] for rate in of_table]
    asked = [sorted(int(i) for i in rows) for rows in c["final_rows_by_table"]]

    def work(exchange: LocalExchange) -> tuple[RoutedKeys, list[Tensor]]:
        rank = exchange.rank
        routers = [Router("roundrobin", c["ranks"])] * len(configs)
        store = HostTables(configs)
        tables = AllToAllTables(store, routers, exchange, merge_across_ranks=False, reduce="sum")
        keys, seen = _keys(c["ids"][rank]), []
        for grads, scale in ((c["grads_step1"], 1.0), (c["grads_step2"], c["scale_step2"])):
            found = tables.lookup(keys)
            seen.append(found.rows)
            tables.apply_gradients(found, _flat(grads[rank]) * scale, rates=rates)
        seen.append(tables.lookup(_keys(asked)).rows)
        return KeyRouter(tables.dims, routers).pack(keys), seen

    done = LocalExchange.run(c["ranks"], work)
    wanted = zip(c["final_rows_by_table"], asked, strict=True)
    final = _flat([[rows[str(i)] for i in ids] for rows, ids in wanted])
    for rank, (packed, seen) in enumerate(done):
        _same_packing(packed, c["packed"][rank], c["ids"][rank], c["ranks"])
        close(seen[0], _flat(c["forward_step1"][rank]).tolist(), what="first forward")
        close(seen[1], _flat(c["forward_step2"][rank]).tolist(), what="second forward")
        close(seen[2], final.tolist(), what="final rows")


def _same_packing(
    packed: RoutedKeys, wanted: dict[str, Any], ids: list[list[int]], ranks: int
) -> None:
    w = take(wanted, ("ids", "shard_sizes", "slot_sizes", "offset_sizes", "offsets"))
    inputs = [torch.tensor(i, dtype=torch.int64) for i in ids]
    fused = fused_reorder_by_indices(inputs, ranks, packed.dims)
    assert packed.ids.tolist() == fused.output.tolist() == w["ids"]
    assert packed.shard_sizes == fused.shard_sizes.tolist() == w["shard_sizes"]
    assert packed.slot_sizes.tolist() == fused.sharded_slot_sizes.tolist() == w["slot_sizes"]
    assert packed.offset_sizes == fused.emb_offset_sizes.tolist() == w["offset_sizes"]
    assert packed.offsets.tolist() == fused.fused_embedding_offsets.tolist() == w["offsets"]


def _any_number_of_ranks(case: Case) -> None:
    c = case.take(
        ("id", "ranks", "optimizer", "ids", "dims", "lrs", "grads", "expect_rows", "note")
    )
    assert c["ranks"] == "R (any)"
    assert c["note"] == "every rank sends the same batch"
    optimizer = original(c["optimizer"], {})
    configs = {
        f"table{k:04}": TableConfig("golden", (Segment(dim, Zeros(), optimizer),))
        for k, dim in enumerate(c["dims"])
    }
    asked = {key: [int(n) for n in re.findall(r"\d+", key)] for key in c["expect_rows"]}

    def work(exchange: LocalExchange) -> list[Tensor]:
        routers = [Router("roundrobin", exchange.ranks)] * len(configs)
        store = HostTables(configs)
        tables = AllToAllTables(store, routers, exchange, merge_across_ranks=False, reduce="sum")
        tables.apply_gradients(_keys(c["ids"]), _flat(c["grads"]), rates=c["lrs"])
        found = []
        for table, key in asked.values():
            ids: list[list[int]] = [[] for _ in configs]
            ids[table].append(key)
            found.append(tables.lookup(_keys(ids)).rows)
        return found

    for ranks in range(1, 5):
        for rows in LocalExchange.run(ranks, work):
            for row, text in zip(rows, c["expect_rows"].values(), strict=True):
                factors = re.findall(r"(-?[\d.]+)\*R", text)
                close(row, [float(factor) * ranks for factor in factors], what=text)


# ---- partitioned


@AREA.handles("partitioned", "cases")
def partitioned_flow(case: Case) -> None:
    shared = ("id", "shards", "batch", "feature_to_table", "pooling", "layouts", "sharded")
    if "preset" in case.value:
        own = ("slice_dims", "preset", "segments", "layouts_before", "layout_grad_everywhere")
        c = case.take((*shared, *own, "emb_grads", "layouts_after"))
        _train(c, _config(c, c["slice_dims"]))
    else:
        c = case.take((*shared, "dims", "embeddings", "out", "emb_grad_for_ones"))
        _lay_out(c, _config(c, {name: [dim] for name, dim in c["dims"].items()}))


def _config(c: dict[str, Any], slice_dims: dict[str, list[int]]) -> FeatureConfigs:
    features = {}
    for name, table in c["feature_to_table"].items():
        pooling = take(c["pooling"][name], ("pooling",), ("max_seq",))
        features[name] = LayoutFeature(
            table, pooling["pooling"], tuple(slice_dims[name]), pooling.get("max_seq", 0)
        )
    outs = {}
    for name, out in c["layouts"].items():
        out = take(out, ("type", "slices"))
        outs[name] = OutConfig(out["type"], tuple(Slice(**one) for one in out["slices"]))
    return FeatureConfigs(features, outs)


def _batch(c: dict[str, Any]) -> tuple[dict[str, tuple[bool, Ragged]], int]:
    rows = {name: (False, Ragged.from_lists(ids)) for name, ids in c["batch"].items()}
    return rows, max(len(ids) for ids in c["batch"].values())


def _same_sharding(pulled: LookedUpBatch, c: dict[str, Any], config: FeatureConfigs) -> None:
    w = take(
        c["sharded"],
        (
            *("tables", "features", "fid_list", "row_splits"),
            *("fid_offset", "feature_offset", "nfl_offset", "batch_size", "emb_size"),
        ),
    )
    found = pulled.sharded
    assert config.tables == w["tables"]
    assert config.names == w["features"]
    labels = [f"{table}:{shard}" for table in config.tables for shard in range(c["shards"])]
    assert dict(zip(labels, [i.tolist() for i in found.fid_list], strict=True)) == w["fid_list"]
    splits = [i.tolist() for i in found.fid_list_row_splits]
    assert dict(zip(labels, splits, strict=True)) == w["row_splits"]
    for name in ("fid_offset", "feature_offset", "nfl_offset", "emb_size"):
        assert getattr(found, name).tolist() == w[name], name
    assert found.batch_size == w["batch_size"]


def _everywhere(
    config: FeatureConfigs,
    stores: Callable[[], list[HostTables]],
    work: Callable[[PartitionedTables, bool], None],
) -> None:
    """In one process, on servers, and over ranks, where rank 0 alone has a batch."""
    work(PartitionedTables(config, LocalShards(stores())), True)
    made = stores()
    configs = dict(zip(made[0].names, made[0].config.configs, strict=True))
    servers = ServerShards([LocalShard(store) for store in made], configs)
    work(PartitionedTables(config, servers), True)
    shards = stores()

    def one(exchange: LocalExchange) -> None:
        tables = RankShards(shards[exchange.rank], exchange)
        work(PartitionedTables(config, tables), exchange.rank == 0)

    LocalExchange.run(len(shards), one)


def _train(c: dict[str, Any], config: FeatureConfigs) -> None:
    assert c["segments"] == "first slice ftrl, others adagrad, rate 1.0, wire defaults"
    assert c["preset"]["rule"].endswith("holds ids s + shards*j for j < sum(slice_dims)")
    native = len(config.tables) == 1 and config.tables[0].endswith("fake_table")
    table_of = {n: n if native else config.features[n].table for n in config.names}
    configs = {}
    for name, table in table_of.items():
        kinds = ["ftrl", *["adagrad"] * (len(c["slice_dims"][name]) - 1)]
        configs[table] = TableConfig(
            "golden",
            tuple(
                Segment(dim, Zeros(), original(kind, {}))
                for dim, kind in zip(c["slice_dims"][name], kinds, strict=True)
            ),
        )
    rates = [1.0] * sum(len(configs[name].segments) for name in configs)

    def stores() -> list[HostTables]:
        made = [HostTables(configs) for _ in range(c["shards"])]
        for shard, store in enumerate(made):
            for k, table in enumerate(store.tables):
                dim = store.dims[k]
                ids = shard + c["shards"] * torch.arange(dim)
                table.assign_add(ids, torch.full((dim, dim), float(c["preset"]["value"])))
        return made

    def work(tables: PartitionedTables, mine: bool) -> None:
        batch, rows = _batch(c) if mine else ({}, 0)
        pulled = tables.pull(tables.shard(batch, rows))
        before = tables.layout(pulled)
        ones = {
            name: [torch.full_like(part, c["layout_grad_everywhere"]) for part in _parts(value)]
            for name, value in before.items()
        }
        grads = tables.gradients(pulled, ones)
        tables.apply_gradients(pulled, ones, rates=rates)
        after = tables.lookup(batch, rows)
        if not mine:
            return
        _same_sharding(pulled, c, config)
        for found, wanted in ((before, c["layouts_before"]), (after, c["layouts_after"])):
            assert set(found) == set(wanted)
            for name, value in found.items():
                _close_layout(value, wanted[name])
        for part, wanted in zip(by_list(pulled.sharded, grads), c["emb_grads"], strict=True):
            close(part, wanted, what="gradients")

    _everywhere(config, stores, work)


def _lay_out(c: dict[str, Any], config: FeatureConfigs) -> None:
    dims = {config.features[name].table: dim for name, dim in c["dims"].items()}
    configs = {
        table: TableConfig("golden", (Segment(dim, Zeros(), Sgd(lr=1.0)),))
        for table, dim in dims.items()
    }

    def stores() -> list[HostTables]:
        made = [HostTables(configs) for _ in range(c["shards"])]
        for number, vectors in enumerate(c["embeddings"]):
            table, shard = divmod(number, c["shards"])
            name = config.tables[table]
            ids = torch.tensor(c["sharded"]["fid_list"][f"{name}:{shard}"], dtype=torch.int64)
            rows = torch.tensor(vectors).view(len(ids), dims[name])
            made[shard].table(table).assign(ids, rows)
        return made

    def work(tables: PartitionedTables, mine: bool) -> None:
        batch, rows = _batch(c) if mine else ({}, 0)
        pulled = tables.pull(tables.shard(batch, rows))
        found = tables.layout(pulled)
        (name,) = c["layouts"]
        ones = {name: [torch.ones_like(part) for part in _parts(found[name])]}
        grads = tables.gradients(pulled, ones)
        if not mine:
            return
        _same_sharding(pulled, c, config)
        for part, wanted in zip(pulled.lists(), c["embeddings"], strict=True):
            close(part, wanted, what="embeddings")
        _close_layout(found[name], c["out"])
        for part, wanted in zip(
            by_list(pulled.sharded, grads), c["emb_grad_for_ones"], strict=True
        ):
            close(part, wanted, what="gradients")

    _everywhere(config, stores, work)


def _parts(value: Tensor | list[Tensor]) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else value


def _close_layout(found: Tensor | list[Tensor], wanted: Any) -> None:
    if isinstance(found, Tensor):
        close(found, wanted, what="layout")
        return
    assert len(found) == len(wanted)
    for part, one in zip(found, wanted, strict=True):
        close(part, one, what="layout")
