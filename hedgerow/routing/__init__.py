"""Which shard owns a key: the same pure functions in training, saving, loading and serving."""

from __future__ import annotations

from .router import SUPPORTED_DIST_TYPES as SUPPORTED_DIST_TYPES
