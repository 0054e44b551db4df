"""The layout ops registered with torch: in the C++ core, in kernels, or with torch's ops.

With torch's ops there is one gather and one sum per feature, for any number of slices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...core.errors import DtypeError, InputError
from ...ops.arguments import FLOATS, on_device, together, typed, widened
from ...ops.library import register
from ...ops.reduce import or_zeros, wide
from .inputs import (
    POOLING_NUMBERS,
    Indices,
    LayoutRequest,
    LayoutTasks,
    Task,
    indices,
    plan_of,
    vectors,
)

if TYPE_CHECKING:
    from ...kernels.to_layout import LayoutCall, LayoutTaskTensors


_MOST = 65535  # limit of the later dimensions of a grid


def forward_by_kernel(indices: Indices, embeddings: Sequence[Tensor]) -> list[Tensor]:
    """Returns the outputs of indices whose shapes were checked."""
    from ...kernels.to_layout import to_layout

    if not indices.plan.tasks:
        return []
    outputs = [embeddings[0].new_empty(shape) for shape in indices.plan.shapes(indices.rows)]
    work, call = _ready(indices, embeddings, outputs)
    to_layout(work, call, embeddings[0], outputs[0])
    return outputs


def backward_by_kernel(
    indices: Indices, sizes: Sequence[int], received: Sequence[Tensor], scale: Tensor | None
) -> list[Tensor]:
    """Returns the gradients of the lists of vectors, which have `sizes` values, times `scale`."""
    from ...kernels.to_layout import to_layout_backward

    like = widened(received[0].new_empty(0))
    lists = [like.new_zeros(size) for size in sizes]
    work, call = _ready(indices, lists, received)
    factor = on_device(1.0 if scale is None else scale, like)
    to_layout_backward(work, call, received[0], lists[0], factor)
    return [one.to(received[0].dtype) for one in lists]


def _ready(
    indices: Indices, lists: Sequence[Tensor], outputs: Sequence[Tensor]
) -> tuple[LayoutTaskTensors, LayoutCall]:
    from ...kernels.to_layout import LayoutCall

    index = (indices.fid_offset, indices.feature_offset, indices.nfl_offset)
    requests = [list(vars(request).values()) for request in indices.requests]
    begins = _begins(lists)
    places = [(begins[number] + first) for number, first in indices.places]
    cut = list(zip(places, indices.lengths, strict=True))
    call = LayoutCall.of(index, requests, cut, _begins(outputs))
    work = _work(indices.plan, indices.fid_offset.device)
    if max(len(work.units), len(requests)) > _MOST:
        raise InputError(
            f"{len(work.units)} slices and {len(requests)} requests; a device takes at most "
            f"{_MOST} of either at a time: pass fewer."
        )
    return work, call


def _begins(tensors: Sequence[Tensor]) -> list[int]:
    """Returns the start of each tensor in values from the start of the first.

    All have one dtype.
    """
    first, size = tensors[0].data_ptr(), tensors[0].element_size()
    return [(one.data_ptr() - first) // size if one.numel() else 0 for one in tensors]


def _work(plan: LayoutTasks, device: torch.device) -> LayoutTaskTensors:
    from ...kernels.to_layout import LayoutTaskTensors

    if device not in plan.kept:
        cells = [[task.numbers() for task in cell] for cell in _cells(plan)]
        plan.kept[device] = LayoutTaskTensors.of(cells, device)
    return plan.kept[device]


def _cells(plan: LayoutTasks) -> list[list[Task]]:
    """Returns tasks grouped by what they write.

    All tasks of an added output form one group, in order.
    """
    adding = {task.output for task in plan.tasks if task.adds}
    cells: dict[object, list[Task]] = {}
    for number, task in enumerate(plan.tasks):
        key = ("adds", task.output) if task.output in adding else number
        cells.setdefault(key, []).append(task)
    return list(cells.values())


_MEAN, _FIRSTN = POOLING_NUMBERS["MEAN"], POOLING_NUMBERS["FIRSTN"]


@dataclass(frozen=True)
class _Feature:
    """The ids of one feature in one request. `positions` are the first values of their vectors."""

    request: LayoutRequest
    tasks: list[Task]
    shared: bool
    entries: int
    counts: Tensor  # ids per entry
    slots: Tensor  # index of each id among the [entries, length] vectors of the ids
    positions: Tensor

    @property
    def reach(self) -> int:
        """Columns that are read."""
        return max(task.start + task.width for task in self.tasks)

    @property
    def length(self) -> int:
        """Vectors per entry."""
        return self.tasks[0].length

    def is_pooled(self, pooling: int) -> bool:
        """Returns whether the ids have this pooling."""
        return self.tasks[0].pooling == pooling


def embedding_to_layout_plain(indices: Indices, embeddings: Sequence[Tensor]) -> list[Tensor]:
    """Returns the outputs of checked indices. Halves are summed in float32."""
    if not indices.plan.tasks:
        return []
    flat = wide(embeddings[0] if len(embeddings) == 1 else torch.cat(list(embeddings)))
    outputs = [flat.new_zeros(shape) for shape in indices.plan.shapes(indices.rows)]
    starts = _starts([one.shape[0] for one in embeddings])
    for feature in _features(indices, starts):
        pooled = _pooled(feature, flat)  # [entries, length, reach]
        for task in feature.tasks:
            part = pooled[:, :, task.start : task.start + task.width]
            _view(outputs, task, feature.request).add_(part)
    return [one.to(embeddings[0].dtype) for one in outputs]


def embedding_to_layout_backward_plain(
    indices: Indices, sizes: Sequence[int], received: Sequence[Tensor], scale: Tensor | None = None
) -> list[Tensor]:
    """Returns the gradients of the lists of vectors, which have `sizes` values, times `scale`."""
    grads = scaled([wide(one) for one in received], scale)
    flat = grads[0].new_zeros(sum(sizes))
    for feature in _features(indices, _starts(sizes)):
        sums = flat.new_zeros(feature.entries, feature.length, feature.reach)
        for task in feature.tasks:
            grad = _view(grads, task, feature.request)
            if feature.shared:
                grad = grad.sum(0, keepdim=True)
            sums[:, :, task.start : task.start + task.width] += grad
        if feature.is_pooled(_MEAN):
            sums /= feature.counts.clamp(min=1)[:, None, None]
        given = sums.view(-1, feature.reach).index_select(0, feature.slots)
        columns = torch.arange(feature.reach, device=flat.device)
        values = (feature.positions[:, None] + columns).reshape(-1)
        flat.scatter_add_(0, values, given.reshape(-1))
    flat = flat.to(received[0].dtype)
    return [part.clone() for part in flat.split(list(sizes))] if len(sizes) > 1 else [flat]


def scaled(grads: list[Tensor], scale: Tensor | None) -> list[Tensor]:
    """Returns gradients multiplied by the scale, if there is one."""
    if scale is None:
        return grads
    return [grad * scale.to(grad.device, grad.dtype) for grad in grads]


def _starts(sizes: Sequence[int]) -> list[int]:
    """Returns the first value of each tensor when all are concatenated."""
    return [sum(sizes[:i]) for i in range(len(sizes))]


def _view(tensors: Sequence[Tensor], task: Task, request: LayoutRequest) -> Tensor:
    """Returns the values [rows, length, width] of one task in its output."""
    tensor = tensors[task.output]
    first = tensor.storage_offset() + request.row * task.row_stride + task.column
    strides = (task.row_stride, task.position_stride, 1)
    return tensor.as_strided((request.rows, task.length, task.width), strides, first)


def _pooled(feature: _Feature, flat: Tensor) -> Tensor:
    vectors = flat.unfold(0, feature.reach, 1).index_select(0, feature.positions)
    pooled = flat.new_zeros(feature.entries * feature.length, feature.reach)
    if feature.is_pooled(_FIRSTN):
        pooled.index_copy_(0, feature.slots, vectors)
    else:
        pooled.index_add_(0, feature.slots, vectors)
    if feature.is_pooled(_MEAN):
        pooled /= feature.counts.clamp(min=1)[:, None]
    return pooled.view(feature.entries, feature.length, feature.reach)


def _positions(words: Tensor, base: Tensor) -> Tensor:
    """Returns the first value of each word's vector, -1 for a word that names no list."""
    lists = words >> 32
    there = (lists >= 0) & (lists < base.shape[0])
    firsts = base[lists.clamp(0, base.shape[0] - 1)] + (words & 0xFFFFFFFF)
    return torch.where(there, firsts, -1)


def _features(indices: Indices, starts: Sequence[int]) -> Iterator[_Feature]:
    """Yields the non-empty features of every request. Blocks once per request on a device."""
    tasks = {q: list(t) for q, t in groupby(indices.plan.tasks, lambda task: task.feature)}
    for number, request in enumerate(indices.requests):
        here = indices.places[number * indices.lists : (number + 1) * indices.lists]
        base = indices.fid_offset.new_tensor([starts[tensor] + first for tensor, first in here])
        words = indices.fid_offset[request.ids : request.ids + request.id_count]
        positions = _positions(words, base)
        ends = indices.feature_offset[request.offsets : request.offsets + request.entries + 1]
        nfl = indices.nfl_offset[request.nfl : request.nfl + len(indices.plan.config.names) + 1]
        first = (nfl & 0x7FFFFFFF).clamp(max=request.entries)
        borders = ends.to(torch.int64)[first]
        host = torch.stack([first, nfl >> 31 & 1, borders]).tolist()
        for q, mine in tasks.items():
            begin, end = host[0][q], host[0][q + 1]
            ids = slice(host[2][q], host[2][q + 1])
            if begin == end or ids.start == ids.stop or not request.rows:
                continue
            cut = ends[begin : end + 1].to(torch.int64)
            counts, mine_at = cut.diff(), positions[ids]
            slots = torch.repeat_interleave(
                torch.arange(end - begin, device=cut.device),
                counts,
                output_size=ids.stop - ids.start,
            )
            if mine[0].pooling == _FIRSTN:
                place = torch.arange(len(slots), device=cut.device) - (cut[:-1] - cut[0])[slots]
                kept = place < mine[0].length
                slots = (slots * mine[0].length + place)[kept]
                mine_at = mine_at[kept]
            yield _Feature(request, mine, bool(host[1][q]), end - begin, counts, slots, mine_at)


_CORE = {torch.float32: False, torch.float64: True}  # summed by the core; whether double
# The arguments that both ops take after their tensors of vectors.
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
    """Computes the layouts with torch's ops."""
    *rest, validate = given
    lists = vectors(embeddings, rest[0])
    found = indices([one.shape[0] for one in lists], *rest)
    if validate:
        found.check()
    return embedding_to_layout_plain(found, lists)


def layout_by_kernel(embeddings: list[Tensor], *given: Any) -> list[Tensor]:
    """Implements `embedding_to_layout` on a device: all outputs in one launch, without blocking."""
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
    """Returns the gradients, contiguous. Raises unless they fit the outputs."""
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
    """Computes the gradients of the layouts with torch's ops."""
    *rest, validate = given
    found = indices(sizes, *rest)
    received = _received(grads, found)
    if validate:
        found.check()
    return embedding_to_layout_backward_plain(found, sizes, received, scale)


def layout_backward_by_kernel(
    grads: list[Tensor], scale: Tensor | None, sizes: list[int], *given: Any
) -> list[Tensor]:
    """Implements `embedding_to_layout_backward` on a device: one launch, sums in no fixed order."""
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
    """Computes the gradient of the gradient, which is linear: the op on incoming gradients."""
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
