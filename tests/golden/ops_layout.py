"""Vectors of layouts: the producer, every form of the op, their gradients, joined requests."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from hedgerow.monolith.layouts import (
    FeatureConfigs,
    fused_embedding_to_layout,
    fused_embedding_to_layout_grad,
    fused_embedding_to_layout_requests,
    shard_fids,
    to_element_encoding,
)
from tests.ops.layout_model import older_words, one_width_a_table

from .ops_area import AREA, decode, equal, handles
from .runner import Case, take


@handles("shard_fids")
def producer(
    config: dict[str, Any],
    features: dict[str, Any],
    batch_size: int,
    num_shards: int,
    unique: bool,
) -> dict[str, Any]:
    layout = FeatureConfigs.from_json(config)
    given = {name: (one["shared"], one["rows"]) for name, one in features.items()}
    found = shard_fids(given, batch_size, num_shards, layout, unique)
    versions = {"fid_offset_v2": 2, **({"fid_offset_v1": 1} if one_width_a_table(layout) else {})}
    older = {}
    for name, version in versions.items():
        splits = found.fid_list_row_splits
        words = (found.fid_offset, found.nfl_offset, found.feature_offset, splits)
        older[name] = older_words(*words, layout, num_shards, version)
        back = to_element_encoding(older[name], version, layout, num_shards, splits)
        assert torch.equal(back, found.fid_offset)
    return {**vars(found), **older}


_INDEX = {"fid_offset", "feature_offset", "nfl_offset", "batch_size", "num_shards"}
_FORMS = {"flat_embeddings", "emb_lengths", "fid_offset_v1", "fid_offset_v2", "fid_list_row_splits"}


@AREA.handles("fused_embedding_to_layout", "cases")
def layout(case: Case) -> None:
    value = case.take({"name", "origin", "args"}, {"expect", "error", "grad", "rtol", "atol"})
    args = decode(take(value["args"], {"config", "embeddings"} | _INDEX, _FORMS))
    if "error" in value:
        assert value["error"] == "ValueError"
        with pytest.raises(ValueError, match=r".+"):
            _one_form(args, 3)
        return
    rtol, atol = value.get("rtol", 1e-6), value.get("atol", 1e-6)
    wanted = decode(take(value["expect"], {"tensors"}))["tensors"]
    grad = take(value["grad"], {"grad_outputs", "grad_inputs"}) if "grad" in value else None
    versions = [3] + [v for v in (1, 2) if f"fid_offset_v{v}" in args]
    for version in versions + ([4] if "flat_embeddings" in args else []):
        lists, outputs, given = _one_form(args, version)
        equal([one.detach() for one in outputs], wanted, rtol, atol, f"version {version}")
        if grad is None:
            continue
        name = "flat_embeddings" if version == 4 else "embeddings"
        fed = decode(grad["grad_outputs"]["tensors"])
        expected = decode(grad["grad_inputs"][name])
        expected = [expected] if isinstance(expected, Tensor) else expected
        found = torch.autograd.grad(outputs, lists, fed)
        equal(list(found), expected, rtol, atol, f"autograd of version {version}")
        for scale in (None, 0.5):
            plain = fused_embedding_to_layout_grad(
                **given, layout_tensors_grad=fed, layout_tensors_grad_scale=scale
            )
            scaled = [one * (scale or 1) for one in expected]
            equal(plain, scaled, rtol, atol, f"plain gradient of version {version}")


def _one_form(
    args: dict[str, Any], version: int
) -> tuple[list[Tensor], list[Tensor], dict[str, Any]]:
    """The lists of vectors, the outputs, and the arguments of one version's input."""
    config = FeatureConfigs.from_json(args["config"])
    given = {"config": config, **{name: args[name] for name in _INDEX}}
    if version == 4:
        lists = [args["flat_embeddings"].requires_grad_()]
        given |= {"embeddings": lists[0], "emb_lengths": args["emb_lengths"]}
    else:
        lists = [one.requires_grad_() for one in args["embeddings"]]
        given |= {"embeddings": lists}
    if version < 3:
        splits = args.get("fid_list_row_splits")
        given["fid_offset"] = to_element_encoding(
            args[f"fid_offset_v{version}"], version, config, args["num_shards"], splits
        )
    return lists, fused_embedding_to_layout(**given), given


@handles("fused_embedding_to_layout_requests")
def requests(config: dict[str, Any], embeddings: list[Tensor], **given: Any) -> dict[str, Any]:
    layout = FeatureConfigs.from_json(config)
    return {"tensors": fused_embedding_to_layout_requests(embeddings, layout, **given)}
