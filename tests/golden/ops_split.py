"""Vectors of the parameter-server path: splits, distinct keys, filled buffers, and all of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hedgerow.core.ids import Ragged
from hedgerow.monolith.gather_by_ids import shard_of
from hedgerow.monolith.offset_maps import (
    SharedBuffer,
    ValueOffset,
    fill_with_offset_map,
    fill_with_offset_map_gradient,
    finalize_shared_tensor,
    unique_key_with_value_and_offset,
)
from hedgerow.ops.split import ragged_split_by_indices, split_by_indices

from .ops_area import AREA, decode, equal, handles
from .runner import Case


@handles("split_by_indices")
def split(indices: Tensor, tensor: Tensor, num_splits: int) -> dict[str, Any]:
    return {"splits": split_by_indices(indices, tensor, num_splits)}


@handles("ragged_split_by_indices")
def ragged_split(indices: Tensor, num: Ragged, num_splits: int) -> dict[str, Any]:
    splits, positions = ragged_split_by_indices(indices, num, num_splits)
    return {"splits": splits, "positions": positions}


@handles("unique_key_with_value_and_offset")
def unique(key: Ragged, dims: list[int]) -> dict[str, Any]:
    found = unique_key_with_value_and_offset(key, dims)
    assert found.value_buffer is not None
    buffer = found.value_buffer.tensor
    assert buffer.dtype == torch.float32
    assert not buffer.any()
    return {
        "unique_key": found.unique_key,
        "value_offset": found.value_offset,
        "buffer_size": buffer.shape[0],
    }


def _fill_parts(
    value_offset: dict[str, Tensor], buffer_size: int, dims: list[int], parts: list[dict[str, Any]]
) -> Tensor:
    where = ValueOffset(**value_offset)
    buffer = SharedBuffer.zeros(buffer_size)
    filled = [fill_with_offset_map(p["pos"], p["value"], where, buffer, dims) for p in parts]
    return finalize_shared_tensor(filled, torch.float32, [buffer_size])


@handles("fill_with_offset_map")
def fill(
    value_offset: dict[str, Tensor],
    buffer_size: int,
    dims: list[int],
    parts: list[dict[str, Any]],
    values: list[Tensor],
) -> dict[str, Any]:
    given = [{"pos": p["pos"], "value": v} for p, v in zip(parts, values, strict=True)]
    return {"buffer": _fill_parts(value_offset, buffer_size, dims, given)}


_run_filled = AREA.handlers["fill_with_offset_map", "cases"]


@AREA.handles("fill_with_offset_map", "cases")
def fill_case(case: Case) -> None:
    """The gradient is that of the values of all parts; the plain function must tell the same."""
    args = {**case.value["args"], "values": [p["value"] for p in case.value["args"]["parts"]]}
    value = {**case.value, "args": args}
    _run_filled(Case(case.file, case.section, case.label, value, case.document, case.run_with))
    if "grad" in case.value:
        grad = decode(case.value["grad"])
        where = ValueOffset(**decode(args["value_offset"]))
        found = [
            fill_with_offset_map_gradient(
                part["pos"], grad["grad_outputs"]["buffer"], where, args["dims"]
            )
            for part in decode(args["parts"])
        ]
        rtol, atol = case.value.get("rtol", 1e-6), case.value.get("atol", 1e-6)
        equal(found, grad["grad_inputs"]["values"], rtol, atol, "plain gradient")


@handles("pipeline_parameter_server")
def parameter_server(
    key: Ragged, dims: list[int], num_shards: int, shard_values: list[Tensor]
) -> dict[str, Any]:
    found = unique_key_with_value_and_offset(key, dims)
    shards = shard_of(found.unique_key.values, num_shards)
    keys, positions = ragged_split_by_indices(shards, found.unique_key, num_shards)
    handles = [
        fill_with_offset_map(pos, value, found.value_offset, found.value_buffer, dims)
        for pos, value in zip(positions, shard_values, strict=True)
    ]
    buffer = finalize_shared_tensor(handles, torch.float32)
    return {"shard_keys": keys, "shard_positions": positions, "buffer": buffer}
