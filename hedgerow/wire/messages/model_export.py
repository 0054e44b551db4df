"""The record of exported versions (package monolith.model_export)."""

from __future__ import annotations

from .lazy import names_of

__getattr__ = names_of(__name__)
