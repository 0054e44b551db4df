"""Monolith's `embedding_combiners` with its names."""

from __future__ import annotations

from ..ops.combiners import Combiner, FirstN, ReduceMean, ReduceSum

__all__ = ["Combiner", "FirstN", "ReduceMean", "ReduceSum"]
