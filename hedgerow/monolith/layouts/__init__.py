"""Layouts: turn the vectors of a batch's ids into the dense inputs of a model."""

from __future__ import annotations

from .calls import (
    fused_embedding_to_layout,
    fused_embedding_to_layout_grad,
    fused_embedding_to_layout_grad_versioned,
    fused_embedding_to_layout_requests,
    fused_embedding_to_layout_versioned,
    nest_layout,
)
from .config import FeatureConfigs, LayoutFeature, OutConfig, Slice
from .inputs import to_element_encoding
from .shard_fids import ShardedFids, shard_fids

__all__ = [
    "FeatureConfigs",
    "LayoutFeature",
    "OutConfig",
    "ShardedFids",
    "Slice",
    "fused_embedding_to_layout",
    "fused_embedding_to_layout_grad",
    "fused_embedding_to_layout_grad_versioned",
    "fused_embedding_to_layout_requests",
    "fused_embedding_to_layout_versioned",
    "nest_layout",
    "shard_fids",
    "to_element_encoding",
]
