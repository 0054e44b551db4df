"""The layout of a fused call: ids of K tables from N source shards, shard after shard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from ...core import checks
from ...core.errors import InputError
from ...core.shapes import Float32, Int64
from .parts import float_offsets


@dataclass(frozen=True, slots=True, eq=False)
class FusedOffsets:
    """Where each cell (shard, table) starts, in ids and in floats; running sums with their end."""

    id_offsets: Int64[Tensor, "N * K + 1"]
    emb_offsets: Int64[Tensor, "N * K + 1"]
    emb_splits: Int64[Tensor, "N"]  # floats of each source shard


@dataclass(frozen=True, slots=True, eq=False)
class FusedLookup:
    """Rows of a fused lookup, in the order of its ids, and where each cell starts."""

    embeddings: Float32[Tensor, "floats"]
    emb_splits: Int64[Tensor, "N"]  # floats of each source shard
    id_offsets: Int64[Tensor, "N * K + 1"]
    emb_offsets: Int64[Tensor, "N * K + 1"]


def fused_offsets(
    slot_sizes: Int64[Tensor, "N * K"], dims: Sequence[int], shards: int
) -> FusedOffsets:
    """The offsets that follow from the number of ids in each cell, shard-major.

    >>> at = fused_offsets(torch.tensor([1, 0, 1, 0, 1, 1]), [1, 2, 2], shards=2)
    >>> at.id_offsets.tolist(), at.emb_offsets.tolist(), at.emb_splits.tolist()
    ([0, 1, 1, 2, 2, 3, 4], [0, 1, 1, 3, 3, 5, 7], [3, 4])
    """
    tables = len(dims)
    checks.count("shards", shards, least=1)
    checks.tensor("slot_sizes", slot_sizes, torch.int64, (shards * tables,))
    sizes = slot_sizes.tolist()
    if min(sizes) < 0:
        raise InputError(f"slot_sizes holds {min(sizes)}; a cell has at least 0 ids.")
    id_offsets = [0, *accumulate(sizes)]
    emb_offsets = float_offsets(id_offsets, dims)
    if emb_offsets[-1] >= 2**63:
        raise InputError(f"slot_sizes add up to {id_offsets[-1]} ids; no tensor is that long.")
    ends = torch.tensor(emb_offsets)
    return FusedOffsets(torch.tensor(id_offsets), ends, ends[::tables].diff())


def checked_ids(ids: Int64[Tensor, "n"], at: FusedOffsets) -> list[int]:
    """The id offsets as numbers, once the ids are as many as the cells say."""
    checks.tensor("ids", ids, torch.int64, (None,))
    offsets = at.id_offsets.tolist()
    if offsets[-1] != len(ids):
        raise InputError(f"slot_sizes add up to {offsets[-1]}, but there are {len(ids)} ids.")
    return offsets
