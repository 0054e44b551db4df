"""Everything that exists only for Monolith's names, semantics and file formats."""

from __future__ import annotations
