"""Layouts as a chain of torch ops: for devices the core is not for, and what the core is held to.

One gather and one sum a feature, whatever the number of its slices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from ..reduce import wide
from .inputs import Indices, Request
from .plan import POOLING_NUMBERS, Task

_MEAN, _FIRSTN = POOLING_NUMBERS["MEAN"], POOLING_NUMBERS["FIRSTN"]


@dataclass(frozen=True)
class _Feature:
    """The ids of one feature in one request; `positions` are their vectors' first values."""

    request: Request
    tasks: list[Task]
    shared: bool
    entries: int
    counts: Tensor  # ids of each entry
    slots: Tensor  # of each id among the [entries, length] vectors that the ids make
    positions: Tensor

    @property
    def reach(self) -> int:
        """Columns that are read."""
        return max(task.start + task.width for task in self.tasks)

    @property
    def length(self) -> int:
        """Vectors an entry makes."""
        return self.tasks[0].length

    def is_pooled(self, pooling: int) -> bool:
        """Whether its ids are pooled so."""
        return self.tasks[0].pooling == pooling


def embedding_to_layout_plain(indices: Indices, embeddings: Sequence[Tensor]) -> list[Tensor]:
    """The outputs of checked indices; halves are summed in float32."""
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
    """The gradients of the lists of vectors, which have `sizes` values; `scale` multiplies them."""
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
    """Gradients times the scale, if there is one."""
    if scale is None:
        return grads
    return [grad * scale.to(grad.device, grad.dtype) for grad in grads]


def _starts(sizes: Sequence[int]) -> list[int]:
    """The first value of each tensor when all are one behind the other."""
    return [sum(sizes[:i]) for i in range(len(sizes))]


def _view(tensors: Sequence[Tensor], task: Task, request: Request) -> Tensor:
    """The values [rows, length, width] of one task in its output."""
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
    """The first value of each word's vector. Words outside every entry may name no list: -1."""
    lists = words >> 32
    there = (lists >= 0) & (lists < base.shape[0])
    firsts = base[lists.clamp(0, base.shape[0] - 1)] + (words & 0xFFFFFFFF)
    return torch.where(there, firsts, -1)


def _features(indices: Indices, starts: Sequence[int]) -> Iterator[_Feature]:
    """Features that are there and used, of every request. Waits once a request on a device."""
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
