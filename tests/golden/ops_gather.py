"""Vectors of reordering and of vectors by id: the path of an exchange between all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hedgerow.monolith.gather_by_ids import (
    gather_embeddings_by_ids_gradient_back_prop,
    gather_embeddings_by_input,
    map_id_to_embedding,
    map_id_to_embedding_gradient_back_prop,
)
from hedgerow.ops.fused_gather import (
    fused_gather_embeddings_by_input,
    fused_gather_embeddings_by_input_gradient,
)
from hedgerow.ops.reorder import fused_reorder_by_indices, reorder_by_indices

from .ops_area import AREA, decode, equal, handles
from .runner import Case


@handles("reorder_by_indices")
def reorder(**args: Any) -> dict[str, Any]:
    output, sizes = reorder_by_indices(**args)
    return {"output": output, "shard_sizes": sizes}


@handles("fused_reorder_by_indices")
def fused_reorder(**args: Any) -> dict[str, Any]:
    return fused_reorder_by_indices(**args)._asdict()


@handles("map_id_to_embedding")
def map_back(**args: Any) -> dict[str, Any]:
    output = map_id_to_embedding(**args)
    assert torch.equal(output, map_id_to_embedding(**args, use_multi_threads=False))
    return {"output": output}


@handles("gather_embeddings_by_input")
def gather(**args: Any) -> dict[str, Any]:
    output, mapping = gather_embeddings_by_input(**args)
    return {"output": output, "index_mapping": mapping}


@handles("fused_gather_embeddings_by_input")
def fused_gather(**args: Any) -> dict[str, Any]:
    return {"outputs": fused_gather_embeddings_by_input(**args)}


@handles("pipeline_all_to_all")
def all_to_all(
    inputs: list[Tensor],
    num_of_shards: int,
    dim_sizes: list[int],
    rank0_empty: bool,
    fused_embeddings: Tensor,
) -> dict[str, Any]:
    made = fused_reorder_by_indices(inputs, num_of_shards, dim_sizes, rank0_empty)
    sizes = made.sharded_slot_sizes.view(num_of_shards, len(inputs)).long()
    offsets = made.fused_embedding_offsets.split(made.emb_offset_sizes.tolist())
    return {
        "output": made.output,
        "shard_sizes": made.shard_sizes,
        "embedding_splits": (sizes * torch.tensor(dim_sizes)).sum(1).tolist(),
        "outputs": fused_gather_embeddings_by_input(fused_embeddings, offsets, dim_sizes),
    }


# ---- the plain gradient functions give the gradients of the vectors too

Gradient = Callable[..., Any]


def also_by(op: str) -> Callable[[Gradient], Gradient]:
    """Adds to the cases of `op` that `gradient(args, grad_outputs, scale)` gives their gradient."""

    def register(gradient: Gradient) -> Gradient:
        by_autograd = AREA.handlers[op, "cases"]

        def handler(case: Case) -> None:
            by_autograd(case)
            value = case.value
            if "grad" in value:
                (fed,) = value["grad"]["grad_outputs"].values()
                (wanted,) = value["grad"]["grad_inputs"].values()
                found = gradient(
                    decode(value["args"]), decode(fed), value["grad"].get("scale", 1.0)
                )
                rtol, atol = value.get("rtol", 1e-6), value.get("atol", 1e-6)
                equal(found, decode(wanted), rtol, atol, "plain gradient")

        AREA.handles(op, "cases")(handler)
        return gradient

    return register


@also_by("map_id_to_embedding")
def map_back_gradient(args: Any, grads: Tensor, scale: float) -> list[Tensor]:
    return map_id_to_embedding_gradient_back_prop(args["ids"], args["input"], grads * scale)


@also_by("gather_embeddings_by_input")
def gather_gradient(args: Any, grads: Tensor, scale: float) -> Tensor:
    _, mapping = gather_embeddings_by_input(**args)
    return gather_embeddings_by_ids_gradient_back_prop(args["ids"], grads * scale, mapping)


@also_by("fused_gather_embeddings_by_input")
def fused_gather_gradient(args: Any, grads: list[Tensor], scale: float) -> Tensor:
    size, dims = len(args["fused_embeddings"]), args["embedding_dims"]
    offsets = args["fused_embedding_offsets"]
    found = fused_gather_embeddings_by_input_gradient(size, grads, offsets, dims, scale)
    factor = torch.tensor(scale)
    assert torch.equal(
        found, fused_gather_embeddings_by_input_gradient(size, grads, offsets, dims, factor)
    )
    return found


@also_by("pipeline_all_to_all")
def all_to_all_gradient(args: Any, grads: list[Tensor], scale: float) -> Tensor:
    dims = args["dim_sizes"]
    made = fused_reorder_by_indices(
        args["inputs"], args["num_of_shards"], dims, args["rank0_empty"]
    )
    offsets = made.fused_embedding_offsets.split(made.emb_offset_sizes.tolist())
    size = len(args["fused_embeddings"])
    return fused_gather_embeddings_by_input_gradient(size, grads, offsets, dims, scale)
