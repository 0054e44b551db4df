"""The layout ops as torch knows them: one for every form of input, one for its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...core.errors import DtypeError, InputError
from ..arguments import FLOATS, together, typed
from ..library import register
from ..reduce import or_zeros
from .by_kernel import backward_by_kernel, forward_by_kernel
from .inputs import Indices, indices, vectors
from .plain import embedding_to_layout_backward_plain, embedding_to_layout_plain, scaled
from .plan import plan_of

_CORE = {torch.float32: False, torch.float64: True}  # what the core sums, and which is the wide one
# What both ops take behind their tensors of vectors: the index tensors, and how to read them.
_INDICES = (
    "Tensor fid_offset, Tensor feature_offset, Tensor nfl_offset, SymInt[] batch_sizes, "
    "Tensor? request_sizes, Tensor? lengths, str config, int num_shards, bool validate"
)


def _forward_cpu(embeddings: list[Tensor], *given: Any) -> list[Tensor]:
    *rest, _ = given
    lists = vectors(embeddings, rest[0])
    found = indices([one.shape[0] for one in lists], *rest)
    core = found.check()
    if not lists or lists[0].dtype not in _CORE:
        return embedding_to_layout_plain(found, lists)
    dtype = lists[0].dtype
    outputs = [torch.empty(shape, dtype=dtype) for shape in found.plan.shapes(found.rows)]
    core.forward(
        found.plan.core,
        _CORE[dtype],
        found.addresses(lists),
        [one.data_ptr() for one in outputs],
    )
    return outputs


def forward_plain(embeddings: list[Tensor], *given: Any) -> list[Tensor]:
    """The layouts, by torch's own operations."""
    *rest, validate = given
    lists = vectors(embeddings, rest[0])
    found = indices([one.shape[0] for one in lists], *rest)
    if validate:
        found.check()
    return embedding_to_layout_plain(found, lists)


def layout_by_kernel(embeddings: list[Tensor], *given: Any) -> list[Tensor]:
    """`embedding_to_layout` on a device: all outputs in one launch, nothing waits."""
    *rest, validate = given
    lists = vectors(embeddings, rest[0])
    found = indices([one.shape[0] for one in lists], *rest)
    if validate:
        found.check()
    return forward_by_kernel(found, lists)


def _forward_shapes(embeddings: list[Tensor], *given: Any) -> list[Tensor]:
    rows, config = sum(given[3]), given[6]
    return [embeddings[0].new_empty(shape) for shape in plan_of(config).shapes(rows)]


def _received(grads: Sequence[Tensor], found: Indices) -> list[Tensor]:
    """The gradients, contiguous, if they fit the outputs."""
    shapes = found.plan.shapes(found.rows)
    if len(grads) != len(shapes):
        raise InputError(
            f"layout_tensors_grad has {len(grads)} tensors; the layouts make {len(shapes)}."
        )
    result = []
    for i, (grad, shape) in enumerate(zip(grads, shapes, strict=True)):
        name = f"layout_tensors_grad[{i}]"
        result.append(typed(name, grad, FLOATS, shape))
        if grad.dtype != grads[0].dtype:
            raise DtypeError(f"{name} has dtype {grad.dtype}, the first {grads[0].dtype}.")
        together("fid_offset", found.fid_offset, name, grad)
    return result


def _backward_cpu(
    grads: list[Tensor], scale: Tensor | None, sizes: list[int], *given: Any
) -> list[Tensor]:
    *rest, _ = given
    found = indices(sizes, *rest)
    received = _received(grads, found)
    core = found.check()
    if received[0].dtype not in _CORE:
        return embedding_to_layout_backward_plain(found, sizes, received, scale)
    lists = [received[0].new_empty(size) for size in sizes]
    core.backward(
        found.plan.core,
        _CORE[received[0].dtype],
        [grad.data_ptr() for grad in received],
        1.0 if scale is None else float(scale),
        found.addresses(lists),
    )
    return lists


def backward_plain(
    grads: list[Tensor], scale: Tensor | None, sizes: list[int], *given: Any
) -> list[Tensor]:
    """The gradients of the layouts, by torch's own operations."""
    *rest, validate = given
    found = indices(sizes, *rest)
    received = _received(grads, found)
    if validate:
        found.check()
    return embedding_to_layout_backward_plain(found, sizes, received, scale)


def layout_backward_by_kernel(
    grads: list[Tensor], scale: Tensor | None, sizes: list[int], *given: Any
) -> list[Tensor]:
    """`embedding_to_layout_backward` on a device: one launch, sums in no fixed order."""
    *rest, validate = given
    found = indices(sizes, *rest)
    received = _received(grads, found)
    if validate:
        found.check()
    return backward_by_kernel(found, sizes, received, scale)


def _backward_shapes(
    grads: list[Tensor], scale: Tensor | None, sizes: list[int], *given: Any
) -> list[Tensor]:
    return [grads[0].new_empty(size) for size in sizes]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    embeddings, fid, offsets, nfl, batch_sizes, request_sizes, lengths, *settings = inputs
    ctx.save_for_backward(fid, offsets, nfl, request_sizes, lengths)
    ctx.batch_sizes, ctx.settings = batch_sizes, settings
    ctx.sizes = [one.shape[0] for one in embeddings]
    ctx.dtype = embeddings[0].dtype if embeddings else None


def _given(ctx: Any) -> tuple[Any, ...]:
    fid, offsets, nfl, request_sizes, lengths = ctx.saved_tensors
    return (fid, offsets, nfl, ctx.batch_sizes, request_sizes, lengths, *ctx.settings)


def _whole(
    ctx: Any, grads: Sequence[Tensor | None], shapes: Sequence[tuple[int, ...]]
) -> list[Tensor]:
    device = ctx.saved_tensors[0].device
    return or_zeros(grads, [(shape, ctx.dtype, device) for shape in shapes])


def _backward(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    shapes = plan_of(ctx.settings[0]).shapes(sum(ctx.batch_sizes))
    lists = embedding_to_layout_backward(_whole(ctx, grads, shapes), None, ctx.sizes, *_given(ctx))
    return (lists, *[None] * 9)


def _keep_backward(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    grads, scale, sizes, fid, offsets, nfl, batch_sizes, request_sizes, lengths, *settings = inputs
    ctx.save_for_backward(fid, offsets, nfl, request_sizes, lengths)
    ctx.batch_sizes, ctx.settings = batch_sizes, settings
    ctx.sizes, ctx.scale, ctx.dtype = sizes, scale, grads[0].dtype


def _twice_backward(ctx: Any, lists: list[Tensor | None]) -> tuple[Any, ...]:
    """The gradient is linear: its own gradient is the op on what the lists received."""
    whole = _whole(ctx, lists, [(size,) for size in ctx.sizes])
    grads = scaled(embedding_to_layout(whole, *_given(ctx)), ctx.scale)
    return (grads, *[None] * 11)


embedding_to_layout = register(
    f"embedding_to_layout(Tensor[] embeddings, {_INDICES}) -> Tensor[]",
    cpu=_forward_cpu,
    plain=forward_plain,
    device=layout_by_kernel,
    shapes=_forward_shapes,
    backward=_backward,
    keep=_keep,
)

embedding_to_layout_backward = register(
    f"embedding_to_layout_backward(Tensor[] grads, Tensor? scale, SymInt[] sizes, {_INDICES}) "
    f"-> Tensor[]",
    cpu=_backward_cpu,
    plain=backward_plain,
    device=layout_backward_by_kernel,
    shapes=_backward_shapes,
    backward=_twice_backward,
    keep=_keep_backward,
)
