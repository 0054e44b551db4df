"""Rows on their way from training to serving (package monolith.parameter_sync)."""

from __future__ import annotations

from .lazy import names_of

__getattr__ = names_of(__name__)
