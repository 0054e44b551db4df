"""The one owner function: which shard a key belongs to, under each routing rule."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..core import checks
from ..core.errors import ConfigError, DtypeError
from ..core.hashing import mix64
from ..core.records import Record
from ..core.shapes import Int64

DIST_TYPES = ("roundrobin", "hash_roundrobin")


@dataclass(frozen=True)
class Router(Record):
    """Spreads keys over `shards`. Every 64-bit pattern is a key, read as unsigned.

    `roundrobin` is the key modulo the shards; `hash_roundrobin` mixes the bits first, so that
    patterns in the ids do not pile up on one shard. With `rank0_empty` shard 0 owns nothing.

    >>> Router("roundrobin", 10).owners(torch.tensor([9, 10, -1])).tolist()
    [9, 0, 5]
    >>> Router("roundrobin", 10, rank0_empty=True).owners(torch.tensor([0, 9])).tolist()
    [1, 1]
    """

    kind = "router"
    dist_type: str
    shards: int
    rank0_empty: bool = False

    def __post_init__(self) -> None:
        checks.choice("Router", "dist_type", self.dist_type, DIST_TYPES)
        checks.whole("Router", "shards", self.shards, least=1)
        checks.switch("Router", "rank0_empty", self.rank0_empty)
        if self.rank0_empty and self.shards == 1:
            raise ConfigError(
                "Router.rank0_empty with 1 shard leaves no owner; use 2 shards or more."
            )

    def owners(self, ids: Int64[Tensor, "n"]) -> Int64[Tensor, "n"]:
        """The shard of each key, on the device of the keys."""
        if isinstance(ids, Tensor) and (torch.compiler.is_compiling() or ids.device.type != "cpu"):
            return self._owners_by_torch(ids)
        checks.tensor("ids", ids, torch.int64, (None,))
        hashed = self.dist_type == "hash_roundrobin"
        keys = (mix64(ids) if hashed else ids).numpy().view(np.uint64)
        first = int(self.rank0_empty)
        owners = keys % np.uint64(self.shards - first) + np.uint64(first)
        return torch.from_numpy(owners.view(np.int64))

    def _owners_by_torch(self, ids: Int64[Tensor, "n"]) -> Int64[Tensor, "n"]:
        """The same by torch's signed arithmetic: on every device, and without a value."""
        if ids.dtype != torch.int64 or ids.dim() != 1:
            raise DtypeError(
                f"ids has dtype {ids.dtype} and shape {tuple(ids.shape)}; it must be int64 and "
                f"one-dimensional."
            )
        keys = mix64(ids) if self.dist_type == "hash_roundrobin" else ids
        first = int(self.rank0_empty)
        shards = self.shards - first
        rest = keys.remainder(shards)  # of the signed number: 2^64 is missing below 0
        # Below 0 the sum may pass 2^63; the difference of the same remainder cannot.
        wrapped = rest - (shards - 2**64 % shards)
        unsigned = torch.where(wrapped < 0, wrapped + shards, wrapped)
        return torch.where(keys < 0, unsigned, rest) + first
