"""Ids and the shards that own them, by the original's rule."""

from __future__ import annotations

from torch import Tensor

from ..core.fids import fid_v1_to_v2, make_fid, signature_of, slot_of
from ..core.shapes import Int64
from ..routing.router import Router
from .arguments import tensor

__all__ = ["fid_v1_to_v2", "make_fid", "shard_of", "signature_of", "slot_of"]


def shard_of(
    ids: Int64[Tensor, "n"], num_shards: int, rank0_empty: bool = False
) -> Int64[Tensor, "n"]:
    """The shard of each id: its 64 bits, read as unsigned, modulo the shards.

    With `rank0_empty` shard 0 owns nothing.

    >>> import torch
    >>> shard_of(torch.tensor([9, 10, -1]), 10).tolist()
    [9, 0, 5]
    """
    return Router("roundrobin", num_shards, rank0_empty=rank0_empty).owners(
        tensor("ids", ids).contiguous()
    )
