"""The whole all-to-all path on random batches: a lookup of each id, and its gradient."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hedgerow.monolith.gather_by_ids import shard_of
from hedgerow.ops.fused_gather import (
    fused_gather_embeddings_by_input,
    fused_gather_embeddings_by_input_gradient,
)
from hedgerow.ops.reorder import Reordered, fused_reorder_by_indices
from tests.support import EXTREME_IDS, threads

IDS = st.one_of(st.integers(-9, 30), st.sampled_from(EXTREME_IDS), st.integers(-(2**63), 2**63 - 1))


def vector(slot: int, key: int, dim: int) -> Tensor:
    """What the table of a slot holds for an id: multiples of 1/8, so that sums are exact."""
    generator = torch.Generator().manual_seed((key * 31 + slot) % 2**63)
    return torch.randint(-16, 17, (dim,), generator=generator) / 8


def exchanged(made: Reordered, slots: int, shards: int, dims: list[int]) -> Tensor:
    """Each shard looks up what it was sent, slot by slot, and sends the vectors back."""
    sizes = made.sharded_slot_sizes.view(shards, slots).tolist()
    sent = made.output.split(made.shard_sizes.tolist())
    parts: list[Tensor] = []
    received: list[int] = []
    for shard, ids in enumerate(sent):
        assert (shard_of(ids, shards) == shard).all()
        assert sum(sizes[shard]) == len(ids)
        of_slot = ids.split(sizes[shard])
        mine = [vector(m, i, dims[m]) for m in range(slots) for i in of_slot[m].tolist()]
        received.append(sum(len(one) for one in mine))
        parts += mine
    wanted = [sum(n * d for n, d in zip(row, dims, strict=True)) for row in sizes]
    assert received == wanted
    return torch.cat(parts) if parts else torch.empty(0)


def dense_gradient(
    slots: list[list[int]], grads: list[Tensor], dims: list[int]
) -> list[dict[int, Tensor]]:
    """By slot and id: the sum of the gradients of its occurrences."""
    sums: list[dict[int, Tensor]] = []
    for m, ids in enumerate(slots):
        of_slot: dict[int, Tensor] = {}
        for i, grad in zip(ids, grads[m], strict=True):
            of_slot[i] = of_slot.get(i, torch.zeros(dims[m])) + grad
        sums.append(of_slot)
    return sums


@settings(max_examples=120, deadline=None)
@given(
    slots=st.lists(st.lists(IDS, max_size=30), min_size=1, max_size=7),
    shards=st.one_of(st.integers(1, 9), st.integers(1, 300)),
    dims=st.lists(st.integers(1, 9), min_size=7, max_size=7),
    count=st.sampled_from([1, 2]),
)
def test_every_id_gets_its_vector_and_gives_its_gradient(
    slots: list[list[int]], shards: int, dims: list[int], count: int
) -> None:
    dims = dims[: len(slots)]
    inputs = [torch.tensor(ids, dtype=torch.int64) for ids in slots]
    with threads(count):
        made = fused_reorder_by_indices(inputs, shards, dims)
        fused = exchanged(made, len(slots), shards, dims)
        fused.requires_grad_()
        offsets = made.fused_embedding_offsets.split(made.emb_offset_sizes.tolist())
        rows = fused_gather_embeddings_by_input(fused, offsets, dims)
    for m, ids in enumerate(slots):
        direct = [vector(m, i, dims[m]) for i in ids]
        assert torch.equal(rows[m], torch.stack(direct) if direct else torch.empty(0, dims[m]))

    grads = [torch.randint(-16, 17, one.shape) / 8 for one in rows]
    (found,) = torch.autograd.grad(rows, fused, grads)
    plain = fused_gather_embeddings_by_input_gradient(len(fused), grads, offsets, dims)
    assert torch.equal(found, plain)
    sums = dense_gradient(slots, grads, dims)
    at = 0
    sizes = made.sharded_slot_sizes.view(shards, len(slots)).tolist()
    ids = iter(made.output.tolist())
    for row in sizes:
        for m, size in enumerate(row):
            for _ in range(size):
                assert torch.equal(found[at : at + dims[m]], sums[m].pop(next(ids)))
                at += dims[m]
    assert at == len(found)
    assert not any(sums)


@pytest.mark.parametrize("shards", [1, 5, 8, 300])
def test_a_large_batch(shards: int) -> None:
    generator = torch.Generator().manual_seed(shards)
    dims = [16, 1, 8]
    tables = [torch.rand(5000, dim, generator=generator) for dim in dims]
    inputs = [torch.randint(0, 5000, (20_000,), generator=generator) for _ in dims]
    made = fused_reorder_by_indices(inputs, shards, dims)
    sizes = made.sharded_slot_sizes.tolist()
    parts = made.output.split(sizes)
    fused = torch.cat([tables[k % 3][ids].flatten() for k, ids in enumerate(parts)])
    offsets = made.fused_embedding_offsets.split(made.emb_offset_sizes.tolist())
    rows = fused_gather_embeddings_by_input(fused, offsets, dims)
    for table, ids, found in zip(tables, inputs, rows, strict=True):
        assert torch.equal(found, table[ids])
