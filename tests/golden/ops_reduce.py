"""Vectors of reductions, sums of rows and combiners."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hedgerow.core.ids import Ragged
from hedgerow.ops import combiners, reduce, segment

from .ops_area import handles


def _reduces(how: str) -> None:
    @handles(f"reduce_{how}")
    def reduced(id_indices: Tensor, id_values: Tensor, id_length: Tensor) -> dict[str, Any]:
        run = getattr(reduce, f"reduce_{how}")
        return {"reduced": run(id_indices, id_values, id_length)}


for _how in ("sum", "mean", "sqrtn"):
    _reduces(_how)


@handles("fused_reduce_sum_and_split")
def reduce_sum_and_split(**args: Any) -> dict[str, Any]:
    return {"outputs": reduce.fused_reduce_sum_and_split(**args)}


@handles("fused_sorted_segment_sum")
def sorted_segment_sum(**args: Any) -> dict[str, Any]:
    return {"outputs": segment.fused_sorted_segment_sum(**args)}


@handles("fused_reduce_and_split")
def reduce_and_split(**args: Any) -> dict[str, Any]:
    return {"outputs": segment.fused_reduce_and_split(**args)}


@handles("normalize_merged_split")
def merged_split(**args: Any) -> dict[str, Any]:
    return {"row_split": segment.normalize_merged_split(**args)}


@handles("fused_value_rowids")
def value_rowids(row_splits: Tensor) -> dict[str, Any]:
    count = int(row_splits[-1]) if row_splits.numel() else 0
    ragged = Ragged(torch.zeros(max(count, 0), dtype=torch.int64), row_splits)
    return {"rowids": segment.fused_value_rowids(ragged)}


@handles("embedding_combiners")
def combined(
    combiner: str, key: Ragged, embedding: Tensor, seq_length: int | None = None
) -> dict[str, Any]:
    arguments = () if seq_length is None else (seq_length,)
    return {"output": getattr(combiners, combiner)(*arguments).combine(key, embedding)}
