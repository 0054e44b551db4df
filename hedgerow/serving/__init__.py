"""Trained models that answer requests: export, versions, servers and clients. Door `hr.serving`."""

from __future__ import annotations

from .bundle import load_bundle as load_bundle
from .export import export as export
from .publish_strict import publish_strict as publish_strict
from .replica import Replica as Replica

__all__ = ["Replica", "export", "load_bundle", "publish_strict"]
