"""Vectors of ids and shards: the fid codec, and who owns an id."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from hedgerow.core.hashing import fid_v1_to_v2, make_fid, signature_of, slot_of
from hedgerow.monolith.gather_by_ids import shard_of

from .ops_area import handles


@handles("fid_codec")
def fid_codec(version: int, slot: int, signature: Any) -> dict[str, Any]:
    fid = make_fid(version, slot, int(signature))
    found = {"fid": fid, "slot": slot_of(fid, version), "signature": signature_of(fid, version)}
    return {**found, "fid_v2": fid_v1_to_v2(fid)} if version == 1 else found


@handles("shard_of")
def shards(ids: Tensor, num_shards: int, rank0_empty: bool) -> dict[str, Any]:
    return {"shards": shard_of(ids, num_shards, rank0_empty)}
