"""A lookup over parameter servers, end to end, equals a lookup of every single id."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hedgerow.core.ids import Ragged
from hedgerow.monolith.gather_by_ids import shard_of
from hedgerow.monolith.offset_maps import (
    fill_with_offset_map,
    fill_with_offset_map_gradient,
    finalize_shared_tensor,
    unique_key_with_value_and_offset,
)
from hedgerow.ops.split import ragged_split_by_indices
from tests.support import EXTREME_IDS, threads

IDS = (
    st.integers(-(2**63), 2**63 - 1)
    | st.sampled_from([*EXTREME_IDS, 2**62, -(2**62)])
    | st.integers(-3, 12)
)
# Each table's ids and width; no tables, and tables without ids, are batches too.
BATCHES = st.lists(st.tuples(st.lists(IDS, max_size=25), st.integers(1, 6)), max_size=6)


class Tables:
    """A row for every (table, id), as one dense parameter: what the servers hold."""

    def __init__(self, batch: list[tuple[list[int], int]]) -> None:
        self.starts: dict[tuple[int, int], int] = {}
        floats = 0
        for table, (ids, dim) in enumerate(batch):
            for id in ids:
                if (table, id) not in self.starts:
                    self.starts[table, id] = floats
                    floats += dim
        self.dims = [dim for _, dim in batch]
        self.weights = torch.randint(-99, 99, (floats,)).double().requires_grad_()

    def lookup(self, keys: list[list[int]]) -> Tensor:
        """The rows of all keys, table after table, as one flat vector."""
        rows = [
            self.weights[self.starts[table, id] :][: self.dims[table]]
            for table, ids in enumerate(keys)
            for id in ids
        ]
        return torch.cat([self.weights[:0], *rows])


def _through_servers(key: Ragged, tables: Tables, shards: int) -> tuple[Tensor, list[Tensor]]:
    """The buffer, and what the plain gradient gives for every server's answer."""
    found = unique_key_with_value_and_offset(key, tables.dims)
    assert found.value_buffer is not None
    owners = shard_of(found.unique_key.values, shards)
    keys, positions = ragged_split_by_indices(owners, found.unique_key, shards)
    answers = [tables.lookup(part.to_lists()).float() for part in keys]
    grad = torch.arange(float(found.value_buffer.tensor.shape[0])) % 17 - 8
    handles = [
        fill_with_offset_map(pos, answer, found.value_offset, found.value_buffer, tables.dims)
        for pos, answer in zip(positions, answers, strict=True)
    ]
    buffer = finalize_shared_tensor(handles, torch.float32, [None])
    by_hand = [
        fill_with_offset_map_gradient(pos, grad, found.value_offset, tables.dims)
        for pos in positions
    ]
    if tables.weights.shape[0]:
        by_autograd = torch.autograd.grad(buffer, answers, grad, retain_graph=True)
        for ours, autograd in zip(by_hand, by_autograd, strict=True):
            assert torch.equal(ours, autograd)
    return buffer, by_hand


@settings(max_examples=150, deadline=None)
@given(BATCHES, st.integers(1, 300), st.sampled_from([1, 2, 4]))
def test_a_lookup_over_servers_equals_one_of_every_id(
    batch: list[tuple[list[int], int]], shards: int, count: int
) -> None:
    key, tables = Ragged.from_lists([ids for ids, _ in batch]), Tables(batch)
    direct = tables.lookup([ids for ids, _ in batch])
    with threads(count):
        buffer, _ = _through_servers(key, tables, shards)
        assert torch.equal(buffer.double(), direct)
        grad = torch.arange(float(buffer.shape[0])) % 17 - 8
        if tables.weights.shape[0]:
            (ours,) = torch.autograd.grad(buffer, tables.weights, grad)
            (dense,) = torch.autograd.grad(direct, tables.weights, grad.double())
            assert torch.equal(ours, dense)
