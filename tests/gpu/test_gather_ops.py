"""The ops of the all-to-all path on a GPU: what torch's ops give there is what they give here."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from hedgerow.monolith import gather_by_ids
from hedgerow.ops import fused_gather, reorder

from ..support import EXTREME_IDS


def _ids(n: int) -> Tensor:
    some = torch.randint(-50, 50, (n,), generator=torch.Generator().manual_seed(n))
    return torch.cat([some, torch.tensor(EXTREME_IDS), some.flip(0)])


def _same(here: Sequence[Tensor], there: Sequence[Tensor]) -> None:
    assert len(here) == len(there)
    for one, two in zip(here, there, strict=True):
        assert two.is_cuda
        assert torch.equal(one, two.cpu())


def test_reordering(device: torch.device) -> None:
    ids = _ids(200)
    shards = torch.arange(len(ids)) % 7
    wanted = reorder.reorder_by_indices_plain(ids, shards, 7, False)
    _same(wanted, reorder.reorder_by_indices(ids.to(device), shards.to(device), 7))
    rows = torch.stack([ids.float().abs() * -0.0, ids.float()], 1)
    rows[::2, 0] = (ids[::2] % 5).float()
    wanted = reorder.reorder_by_indices_plain(rows, shards, 7, False)
    _same(wanted, reorder.reorder_by_indices(rows.to(device), shards.to(device), 7))
    slots, dims = [_ids(200), _ids(0)[:0], _ids(31)], [3, 1, 4]
    wanted = reorder.fused_reorder_by_indices_plain(slots, 6, dims, False)
    there = [one.to(device) for one in slots]
    _same(wanted, reorder.fused_reorder_by_indices(there, 6, dims))


def test_vectors_by_id_and_their_gradients(device: torch.device) -> None:
    lists = [_ids(30), _ids(4)]
    tables = [torch.arange(3.0 * len(one)).reshape(-1, 3) / 8 for one in lists]
    queries = _ids(30).view(5, -1)
    wanted, numbers = gather_by_ids.map_id_to_embedding_plain(lists, tables, queries, True, False)
    lengths = [len(one) for one in lists]
    sums = gather_by_ids.map_gradient_plain(wanted, numbers, lengths, True, False)
    leaves = [table.to(device).requires_grad_() for table in tables]
    there = [one.to(device) for one in lists]
    found = gather_by_ids.map_id_to_embedding(there, leaves, queries.to(device))
    _same([wanted], [found.detach()])
    _same(sums, list(torch.autograd.grad(found, leaves, wanted.to(device))))
    with pytest.raises(ValueError, match="input holds 777"):
        gather_by_ids.find_rows(there, torch.tensor([777], device=device), validate=True)
    with pytest.raises(ValueError, match="is on cpu"):
        gather_by_ids.find_rows(lists, queries.to(device))


def test_windows_and_their_gradients(device: torch.device) -> None:
    fused = torch.arange(40.0) / 8
    offsets, dims = [torch.tensor([0, 5, 5, 38]), torch.tensor([1])], [2, 9]
    wanted = fused_gather.fused_gather_embeddings_by_input_plain(fused, offsets, dims, False)
    scale = torch.tensor(0.5)
    sums = fused_gather.fused_gather_gradient_plain(40, wanted, offsets, dims, scale, False)
    there, leaf = [one.to(device) for one in offsets], fused.to(device).requires_grad_()
    found = fused_gather.fused_gather_embeddings_by_input(leaf, there, dims)
    _same(wanted, [one.detach() for one in found])
    grads = [one.to(device) for one in wanted]
    for factor in (0.5, scale, scale.to(device)):
        gradient = fused_gather.fused_gather_embeddings_by_input_gradient(
            40, grads, there, dims, factor
        )
        _same([sums], [gradient])
    _same([sums], [torch.autograd.grad(found, leaf, grads)[0] * 0.5])
    with pytest.raises(ValueError, match="a window of 2"):
        fused_gather.fused_gather_embeddings_by_input(
            leaf, [torch.tensor([39], device=device)], [2], validate=True
        )
