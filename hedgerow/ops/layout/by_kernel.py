"""Layouts on a device: what the kernels are told, and where their results lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...core.errors import InputError
from ..arguments import on_device, widened
from .inputs import Indices
from .plan import Plan, Task

if TYPE_CHECKING:
    from ...kernels.layout_call import Call, Work

_MOST = 65535  # what a grid may have in its later dimensions


def forward_by_kernel(indices: Indices, embeddings: Sequence[Tensor]) -> list[Tensor]:
    """The outputs of indices whose shapes were checked."""
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
    """The gradients of the lists of vectors, which have `sizes` values; `scale` multiplies them."""
    from ...kernels.to_layout import to_layout_backward

    like = widened(received[0].new_empty(0))
    lists = [like.new_zeros(size) for size in sizes]
    work, call = _ready(indices, lists, received)
    factor = on_device(1.0 if scale is None else scale, like)
    to_layout_backward(work, call, received[0], lists[0], factor)
    return [one.to(received[0].dtype) for one in lists]


def _ready(
    indices: Indices, lists: Sequence[Tensor], outputs: Sequence[Tensor]
) -> tuple[Work, Call]:
    from ...kernels.layout_call import Call

    index = (indices.fid_offset, indices.feature_offset, indices.nfl_offset)
    requests = [list(vars(request).values()) for request in indices.requests]
    begins = _begins(lists)
    places = [(begins[number] + first) for number, first in indices.places]
    cut = list(zip(places, indices.lengths, strict=True))
    call = Call.of(index, requests, cut, _begins(outputs))
    work = _work(indices.plan, indices.fid_offset.device)
    if max(len(work.units), len(requests)) > _MOST:
        raise InputError(
            f"{len(work.units)} slices and {len(requests)} requests; a device takes at most "
            f"{_MOST} of either at a time: pass fewer."
        )
    return work, call


def _begins(tensors: Sequence[Tensor]) -> list[int]:
    """Where each begins, counted in values from the begin of the first: they are of one type."""
    first, size = tensors[0].data_ptr(), tensors[0].element_size()
    return [(one.data_ptr() - first) // size if one.numel() else 0 for one in tensors]


def _work(plan: Plan, device: torch.device) -> Work:
    from ...kernels.layout_call import Work

    if device not in plan.kept:
        cells = [[task.numbers() for task in cell] for cell in _cells(plan)]
        plan.kept[device] = Work.of(cells, device)
    return plan.kept[device]


def _cells(plan: Plan) -> list[list[Task]]:
    """Tasks by what they write: of an output that adds, all of its tasks in their order."""
    adding = {task.output for task in plan.tasks if task.adds}
    cells: dict[object, list[Task]] = {}
    for number, task in enumerate(plan.tasks):
        key = ("adds", task.output) if task.output in adding else number
        cells.setdefault(key, []).append(task)
    return list(cells.values())
