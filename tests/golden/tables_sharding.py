"""Vectors of who owns a key, of fused calls, and of the names of merged tables."""

from __future__ import annotations

import torch

from hedgerow.core.ids import Ragged
from hedgerow.monolith.offset_maps import unique_key_with_value_and_offset
from hedgerow.monolith.tables.merged import MergedMultiTypeTable, legacy_names, merged_name
from hedgerow.monolith.tables.multi_type import MultiTypeTable, fused_offsets
from hedgerow.ops.reorder import fused_reorder_by_indices
from hedgerow.routing.router import Router
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.initializers import Zeros
from hedgerow.tables.optimizers import Sgd

from .runner import Case
from .tables_area import AREA


def _config(dim: int) -> TableConfig:
    return TableConfig("golden", (Segment(dim, Zeros(), Sgd(lr=1.0)),))


@AREA.handles("sharding", "owners")
def owner(case: Case) -> None:
    c = case.take(("id", "servers", "owner"))
    router = Router("roundrobin", c["servers"])
    assert router.owners(torch.tensor([c["id"]])).tolist() == [c["owner"]]


@AREA.handles("sharding", "rank0_empty")
def owner_beside_an_empty_rank(case: Case) -> None:
    c = case.take(("id", "shards", "owner"))
    router = Router("roundrobin", c["shards"], rank0_empty=True)
    assert router.owners(torch.tensor([c["id"]])).tolist() == [c["owner"]]


@AREA.handles("sharding", "fused_offsets")
def offsets(case: Case) -> None:
    c = case.take(
        ("dims", "slot_sizes_shard_major", "shards", "id_offsets", "emb_offsets", "emb_splits")
    )
    sizes = torch.tensor(c["slot_sizes_shard_major"], dtype=torch.int64)
    table = MultiTypeTable({f"slot{k:04}": _config(dim) for k, dim in enumerate(c["dims"])})
    got = table.fused_lookup(torch.arange(int(sizes.sum())), sizes, c["shards"])
    assert len(got.embeddings) == c["emb_offsets"][-1]
    for at in (got, fused_offsets(sizes, c["dims"], c["shards"])):
        assert at.id_offsets.tolist() == c["id_offsets"]
        assert at.emb_offsets.tolist() == c["emb_offsets"]
        assert at.emb_splits.tolist() == c["emb_splits"]


@AREA.handles("sharding", "unique_with_offsets")
def distinct_keys_and_offsets(case: Case) -> None:
    c = case.take(("key", "dims", "unique", "value_offsets", "buffer_len"))
    found = unique_key_with_value_and_offset(Ragged.from_lists(c["key"]), c["dims"])
    assert found.unique_key.to_lists() == c["unique"]
    assert found.value_offset.to_lists() == c["value_offsets"]
    assert found.value_buffer is not None
    assert found.value_buffer.tensor.shape == (c["buffer_len"],)


@AREA.handles("sharding", "fused_reorder")
def reordered_by_shard(case: Case) -> None:
    c = case.take(
        (
            *("tables", "dims", "shards", "rank0_empty"),
            *("ids", "shard_sizes", "slot_sizes_shard_major", "emb_offset_sizes", "emb_offsets"),
        )
    )
    tables = [torch.tensor(ids, dtype=torch.int64) for ids in c["tables"]]
    made = fused_reorder_by_indices(tables, c["shards"], c["dims"], c["rank0_empty"])
    assert made.output.tolist() == c["ids"]
    assert made.shard_sizes.tolist() == c["shard_sizes"]
    assert made.sharded_slot_sizes.tolist() == c["slot_sizes_shard_major"]
    assert made.emb_offset_sizes.tolist() == c["emb_offset_sizes"]
    assert made.fused_embedding_offsets.tolist() == c["emb_offsets"]


@AREA.handles("sharding", "merged_names")
def name_of_merged_slots(case: Case) -> None:
    c = case.take(("slots", "merged"))
    assert merged_name(c["slots"]) == c["merged"]
    (group,) = MergedMultiTypeTable({slot: _config(1) for slot in c["slots"]}).groups
    assert group.monolith_names[0] == c["merged"]


@AREA.handles("sharding", "legacy_names")
def older_names_of_merged_slots(case: Case) -> None:
    c = case.take(("slots", "merged", "also_restore_from"))
    assert merged_name(c["slots"]) == c["merged"]
    assert legacy_names(c["slots"]) == c["also_restore_from"]
    (group,) = MergedMultiTypeTable({slot: _config(1) for slot in c["slots"]}).groups
    assert list(group.monolith_names) == [c["merged"], *c["also_restore_from"]]
