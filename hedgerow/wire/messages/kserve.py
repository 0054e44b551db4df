"""Health, metadata and inference of the Open Inference Protocol v2 (package inference)."""

from __future__ import annotations

from .lazy import names_of

__getattr__ = names_of(__name__)
