"""The layout op under the original's names and argument order."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..core.errors import DtypeError, InputError
from ..ops.layout.calls import Counts
from ..ops.layout.config import FeatureConfigs
from ..ops.layout.versions import (
    fused_embedding_to_layout_grad_versioned,
    fused_embedding_to_layout_versioned,
)
from .feature_configs import read_feature_configs

_VARIANTS = ("example", "example_batch", "examplebatch", "instance")


def fused_embedding_to_layout(
    embeddings_list: Sequence[Tensor] | Tensor,
    fid_list_row_split: Sequence[Tensor] | None,
    fid_offset: Tensor,
    feature_offset: Tensor,
    nfl_offset: Tensor,
    batch_size: int | Counts,
    variant_type: str,
    feature_cfgs: FeatureConfigs | bytes,
    ps_num: int,
    fid_list_emb_row_lenth: Counts | None = None,
    nfl_size: Counts | None = None,
    feature_size: Counts | None = None,
    fid_size: Counts | None = None,
    emb_size: Counts | None = None,
    parallel_flag: int = 0,
    version: int = 3,
) -> list[Tensor]:
    """The tensors of all layouts, by name; see `hedgerow.ops.layout`.

    Versions differ in where vectors lie: 1 rows of one width, 2 rows of one feature
    (`fid_list_row_split` needed), 3 flat lists, 4 one flat tensor (`fid_list_emb_row_lenth`
    needed), 5 several requests (the four sizes needed). `variant_type` and `parallel_flag` have no
    effect.
    """
    given = (nfl_size, feature_size, fid_size, emb_size)
    sizes = tuple(one for one in given if one is not None)
    if version == 5 and len(sizes) not in (0, 4):
        raise InputError("version 5 needs nfl_size, feature_size, fid_size and emb_size together.")
    return fused_embedding_to_layout_versioned(
        embeddings_list,
        _config(feature_cfgs, variant_type),
        version=version,
        fid_offset=fid_offset,
        feature_offset=feature_offset,
        nfl_offset=nfl_offset,
        batch_size=batch_size,
        num_shards=ps_num,
        fid_list_row_splits=fid_list_row_split,
        emb_lengths=fid_list_emb_row_lenth,
        request_sizes=sizes if len(sizes) == 4 else None,
    )


def fused_embedding_to_layout_grad(
    nfl_offset: Tensor,
    feature_offset: Tensor,
    fid_offset: Tensor,
    batch_size: int | Counts,
    embeddings_list: Sequence[Tensor] | Tensor,
    fid_list_row_split: Sequence[Tensor] | None,
    layout_tensors_grad: Sequence[Tensor],
    variant_type: str,
    feature_cfgs: FeatureConfigs | bytes,
    ps_num: int,
    fid_list_emb_row_lenth: Counts | None = None,
    layout_tensors_grad_scale: float | Tensor | None = None,
    parallel_flag: int = 0,
    version: int = 3,
) -> list[Tensor]:
    """The gradient of each of `embeddings_list`, of one request; the scale multiplies it."""
    return fused_embedding_to_layout_grad_versioned(
        embeddings_list,
        _config(feature_cfgs, variant_type),
        version=version,
        fid_offset=fid_offset,
        feature_offset=feature_offset,
        nfl_offset=nfl_offset,
        batch_size=batch_size,
        num_shards=ps_num,
        layout_tensors_grad=layout_tensors_grad,
        layout_tensors_grad_scale=layout_tensors_grad_scale,
        fid_list_row_splits=fid_list_row_split,
        emb_lengths=fid_list_emb_row_lenth,
    )


def _config(feature_cfgs: FeatureConfigs | bytes, variant_type: str) -> FeatureConfigs:
    if variant_type not in _VARIANTS:
        raise InputError(
            f"variant_type is {variant_type!r}; it must be one of {', '.join(_VARIANTS)}."
        )
    if isinstance(feature_cfgs, bytes):
        return read_feature_configs(feature_cfgs)
    if not isinstance(feature_cfgs, FeatureConfigs):
        raise DtypeError(
            f"feature_cfgs is a {type(feature_cfgs).__name__}; pass a FeatureConfigs, or the bytes "
            f"of the original's message."
        )
    return feature_cfgs
