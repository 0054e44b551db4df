"""Runs the ops' kernels in place of the CPU's forms: the device path without a device."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hedgerow.monolith.layouts import operators
from hedgerow.ops import combiners, fused_gather, reorder, segment
from hedgerow.routing import bucketize

_FORMS = {
    "fused_gather_embeddings_by_input": fused_gather.fused_gather_by_kernel,
    "fused_gather_embeddings_by_input_gradient": fused_gather.fused_gather_gradient_by_kernel,
    "fused_sorted_segment_sum": segment.segment_sum_by_kernel,
    "fused_reduce_and_split": segment.reduce_and_split_by_kernel,
    "combine_sum": combiners.combine_sum_by_kernel,
    "combine_mean": combiners.combine_mean_by_kernel,
    "fused_reorder_by_indices": reorder.fused_reorder_on_device,
    "embedding_to_layout": operators.layout_by_kernel,
    "embedding_to_layout_backward": operators.layout_backward_by_kernel,
}
FILES = {  # of vectors whose ops have a kernel
    "embedding_combiners",
    "fused_gather_embeddings_by_input",
    "fused_reorder_by_indices",
    "fused_sorted_segment_sum",
    "fused_reduce_and_split",
    "fused_embedding_to_layout",
    "fused_embedding_to_layout_requests",
    "pipeline_all_to_all",
}


@contextmanager
def by_kernels() -> Iterator[None]:
    """Inside, CPU tensors go through the kernels, in Triton's interpreter."""
    library = torch.library.Library("hedgerow", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that another form is replaced: it is what we want
        for name, form in _FORMS.items():
            library.impl(name, form, "CPU")
    core, bucketize._by_core = bucketize._by_core, bucketize.bucketize_by_kernel
    try:
        yield
    finally:
        bucketize._by_core = core
        library._destroy()
