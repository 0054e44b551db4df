"""The packing for owners: the same as the fused op's, and every row back at its place."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.ops.reorder import fused_reorder_by_indices
from hedgerow.routing.router import Router
from hedgerow.tables.multi.routed_keys import KeyRouter
from tests.support import EXTREME_IDS

from .worlds import DIMS, keys_of

IDS = st.one_of(st.integers(-4, 8), st.sampled_from(EXTREME_IDS))
TABLES = st.lists(st.lists(IDS, max_size=12), min_size=1, max_size=3)


@settings(max_examples=60, deadline=None)
@given(tables=TABLES, ranks=st.integers(1, 5))
def test_it_is_the_fused_op(tables: list[list[int]], ranks: int) -> None:
    dims = DIMS[: len(tables)]
    routers = [Router("roundrobin", ranks)] * len(tables)
    packed = KeyRouter(dims, routers).pack(keys_of(tables))
    inputs = [torch.tensor(ids, dtype=torch.int64) for ids in tables]
    fused = fused_reorder_by_indices(inputs, ranks, dims)
    assert packed.ids.tolist() == fused.output.tolist()
    assert packed.shard_sizes == fused.shard_sizes.tolist()
    assert packed.slot_sizes.tolist() == fused.sharded_slot_sizes.tolist()
    assert packed.offset_sizes == fused.emb_offset_sizes.tolist()
    assert packed.offsets.tolist() == fused.fused_embedding_offsets.tolist()


@settings(max_examples=60, deadline=None)
@given(
    tables=TABLES,
    ranks=st.integers(1, 5),
    dedup=st.booleans(),
    one_dim=st.booleans(),
    dist_type=st.sampled_from(["roundrobin", "hash_roundrobin"]),
)
def test_rows_come_back_and_gradients_go(
    tables: list[list[int]], ranks: int, dedup: bool, one_dim: bool, dist_type: str
) -> None:
    dims = (2,) * len(tables) if one_dim else DIMS[: len(tables)]
    routers = [Router(dist_type, ranks)] * len(tables)
    packed = KeyRouter(dims, routers).pack(keys_of(tables), dedup=dedup)
    cells = packed.ids.split(packed.slot_sizes.tolist())
    sent: list[tuple[int, int, int]] = []
    for i, cell in enumerate(cells):
        owner, table = divmod(i, len(tables))
        assert (routers[table].owners(cell) == owner).all()
        sent += [(owner, table, key) for key in cell.tolist()]
    if dedup:
        assert len({(table, key) for _, table, key in sent}) == len(sent)
    asked = [(table, key) for table, ids in enumerate(tables) for key in ids]
    assert [sent[place][1:] for place in packed.places.tolist()] == asked

    values = torch.arange(float(packed.floats))
    flat = torch.empty(sum(dims[table] for table, _ in asked))
    packed.unpack(values, flat)
    at = 0
    for (table, _), offset in zip(asked, packed.offsets.tolist(), strict=True):
        dim = dims[table]
        assert torch.equal(flat[at : at + dim], values[offset : offset + dim])
        at += dim
    assert at == len(flat)
    counts = packed.occurrences()
    assert int(counts.sum()) == len(asked)
    assert torch.equal(packed.occurrences(torch.full((len(asked),), 2)), 2 * counts)
    summed = packed.sum_gradients(torch.ones_like(flat))
    widths = [dims[table] for _, table, _ in sent]
    wanted = [float(n) for n, dim in zip(counts.tolist(), widths, strict=True) for _ in range(dim)]
    assert summed.tolist() == wanted
    if not dedup:
        assert torch.equal(packed.in_order(flat), values)
