"""Questions to a serving agent (package monolith.serving.agent_service)."""

from __future__ import annotations

from .lazy import names_of

__getattr__ = names_of(__name__)
