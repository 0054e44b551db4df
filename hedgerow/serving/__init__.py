"""Trained models that answer requests: export, versions, servers and clients. Door `hr.serving`."""

from __future__ import annotations

from .bundle import load_bundle as load_bundle
from .export import export as export

__all__ = ["export", "load_bundle"]
