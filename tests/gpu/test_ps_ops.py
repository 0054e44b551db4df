"""The parameter-server path on a device tells what it tells on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hedgerow.core.ids import Ragged
from hedgerow.monolith.gather_by_ids import shard_of
from hedgerow.monolith.offset_maps import (
    fill_with_offset_map,
    fill_with_offset_map_gradient,
    finalize_shared_tensor,
    unique_key_with_offset_plain,
    unique_key_with_value_and_offset,
)
from hedgerow.ops.split import (
    ragged_split_by_indices,
    ragged_split_by_indices_plain,
    split_by_indices,
    split_by_indices_plain,
)

DIMS, SHARDS = [3, 1, 4], 7


def _key() -> Ragged:
    random = torch.Generator().manual_seed(1)
    ids = torch.randint(-40, 40, (500,), generator=random)
    ids[:3] = torch.tensor([-(2**63), 2**63 - 1, -1])
    return Ragged(ids, torch.tensor([0, 200, 200, 500]))


def test_splits_of_a_device_are_those_of_the_cpu(device: torch.device) -> None:
    ids = _key().values
    owners = shard_of(ids.to(device), SHARDS)
    wanted = torch.tensor([id % 2**64 % SHARDS for id in ids.tolist()])
    assert torch.equal(owners.cpu(), wanted)
    rows = torch.arange(1500.0, device=device).view(500, 3).requires_grad_()
    parts = split_by_indices(owners, rows, SHARDS)
    for ours, plain in zip(
        parts, split_by_indices_plain(wanted, rows.detach().cpu(), SHARDS), strict=True
    ):
        assert torch.equal(ours.detach().cpu(), plain)
    torch.cat([part * k for k, part in enumerate(parts)]).sum().backward()
    assert rows.grad is not None
    assert torch.equal(rows.grad.cpu(), wanted.float()[:, None].expand(500, 3))
    with pytest.raises(ValueError, match="indices holds 7"):
        split_by_indices(owners + 1, rows, SHARDS)


def test_the_whole_path_on_a_device(device: torch.device) -> None:
    key = _key()
    found = unique_key_with_value_and_offset(
        Ragged(key.values.to(device), key.row_splits.to(device)), DIMS, validate=True
    )
    keys, splits, offsets, inner = unique_key_with_offset_plain(key.values, key.row_splits, DIMS)
    assert torch.equal(found.unique_key.values.cpu(), keys)
    assert torch.equal(found.value_offset.values.cpu(), offsets)
    owners = shard_of(found.unique_key.values, SHARDS)
    _, positions = ragged_split_by_indices(owners, found.unique_key, SHARDS, validate=True)
    _, places, borders = ragged_split_by_indices_plain(owners.cpu(), keys, splits, SHARDS)
    grad = torch.arange(1800.0)
    values: list[Tensor] = []
    for k, pos in enumerate(positions):
        assert torch.equal(pos.values.cpu(), places[k])
        floats = int((borders[k].diff() * torch.tensor(DIMS)).sum())
        values.append(torch.full((floats,), float(k), device=device, requires_grad=True))
        fill_with_offset_map(
            pos, values[-1], found.value_offset, found.value_buffer, DIMS, validate=True
        )
    assert found.value_buffer is not None
    buffer = finalize_shared_tensor([found.value_buffer], torch.float32, [1800])
    each = torch.tensor([id % 2**64 % SHARDS for id in key.values.tolist()]).float()
    width = torch.tensor(DIMS)[key.row_ids]
    assert torch.equal(buffer.detach().cpu(), each.repeat_interleave(width))
    grads = torch.autograd.grad(buffer, values, grad.to(device))
    for k, (pos, ours) in enumerate(zip(positions, grads, strict=True)):
        starts = [offsets[inner[u] : inner[u + 1]].tolist() for u in places[k].tolist()]
        widths = torch.tensor(DIMS).repeat_interleave(borders[k].diff()).tolist()
        parts = [
            torch.stack([grad[start : start + width] for start in at]).sum(0)
            for at, width in zip(starts, widths, strict=True)
        ]
        dense = torch.cat(parts) if parts else torch.empty(0)
        torch.testing.assert_close(ours.cpu(), dense)
        plain = fill_with_offset_map_gradient(pos, grad.to(device), found.value_offset, DIMS)
        torch.testing.assert_close(plain.cpu(), dense)
