"""The original's five versions of the layout op: where each puts vectors, over the one op."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ...core.errors import InputError
from .. import given
from .calls import (
    Counts,
    fused_embedding_to_layout,
    fused_embedding_to_layout_grad,
    fused_embedding_to_layout_requests,
)
from .config import FeatureConfigs
from .encoding import to_element_encoding


def fused_embedding_to_layout_versioned(
    embeddings: Sequence[Tensor] | Tensor,
    config: FeatureConfigs,
    *,
    version: int,
    fid_offset: Tensor,
    feature_offset: Tensor,
    nfl_offset: Tensor,
    batch_size: int | Counts,
    num_shards: int,
    fid_list_row_splits: Sequence[Tensor] | None = None,
    emb_lengths: Counts | None = None,
    request_sizes: tuple[Counts, Counts, Counts, Counts] | None = None,
) -> list[Tensor]:
    """`fused_embedding_to_layout` with the input of a version, 1 to 5.

    Version 2 needs `fid_list_row_splits`, version 4 `emb_lengths`; version 5 takes several requests
    with `request_sizes`: nfl_size, feature_size, fid_size, emb_size.
    """
    words = to_element_encoding(fid_offset, version, config, num_shards, fid_list_row_splits)
    if version == 5 and request_sizes is not None:
        nfl_size, feature_size, fid_size, emb_size = request_sizes
        return fused_embedding_to_layout_requests(
            _lists(embeddings),
            config,
            fid_offset=words,
            feature_offset=feature_offset,
            nfl_offset=nfl_offset,
            batch_size=_several(batch_size),
            nfl_size=nfl_size,
            feature_size=feature_size,
            fid_size=fid_size,
            emb_size=emb_size,
            num_shards=num_shards,
        )
    return fused_embedding_to_layout(
        embeddings,
        config,
        fid_offset=words,
        feature_offset=feature_offset,
        nfl_offset=nfl_offset,
        batch_size=_single(batch_size),
        num_shards=num_shards,
        emb_lengths=_cut(version, emb_lengths),
    )


def fused_embedding_to_layout_grad_versioned(
    embeddings: Sequence[Tensor] | Tensor,
    config: FeatureConfigs,
    *,
    version: int,
    fid_offset: Tensor,
    feature_offset: Tensor,
    nfl_offset: Tensor,
    batch_size: int | Counts,
    num_shards: int,
    layout_tensors_grad: Sequence[Tensor],
    layout_tensors_grad_scale: float | Tensor | None = None,
    fid_list_row_splits: Sequence[Tensor] | None = None,
    emb_lengths: Counts | None = None,
) -> list[Tensor]:
    """`fused_embedding_to_layout_grad` with the input of a version; of one request."""
    words = to_element_encoding(fid_offset, version, config, num_shards, fid_list_row_splits)
    return fused_embedding_to_layout_grad(
        embeddings,
        config,
        fid_offset=words,
        feature_offset=feature_offset,
        nfl_offset=nfl_offset,
        batch_size=_single(batch_size),
        num_shards=num_shards,
        layout_tensors_grad=layout_tensors_grad,
        layout_tensors_grad_scale=layout_tensors_grad_scale,
        emb_lengths=_cut(version, emb_lengths),
    )


def _cut(version: int, emb_lengths: Counts | None) -> Counts | None:
    """Only version 4 has one flat tensor; the others' calls may carry lengths they do not use."""
    if version == 4 and emb_lengths is None:
        raise InputError("version 4 needs emb_lengths, which cut its flat tensor.")
    return emb_lengths if version == 4 else None


def _lists(embeddings: Sequence[Tensor] | Tensor) -> Sequence[Tensor]:
    if isinstance(embeddings, Tensor):
        raise InputError("embeddings is one tensor; version 5 takes a list by table and shard.")
    return embeddings


def _several(batch_size: int | Counts) -> Counts:
    return [batch_size] if isinstance(batch_size, int | np.integer) else batch_size


def _single(batch_size: int | Counts) -> int | Tensor:
    if isinstance(batch_size, int | np.integer | torch.SymInt | Tensor):
        return batch_size
    batch_size = given.listed("batch_size", batch_size)
    if len(batch_size) != 1:
        raise InputError(
            f"batch_size has {len(batch_size)} entries; several requests need nfl_size, "
            f"feature_size, fid_size and emb_size, and their gradient is taken by autograd."
        )
    return batch_size[0]
