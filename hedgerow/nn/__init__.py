"""Modules whose rows live in tables: they read in forward and update at the end of backward."""

from __future__ import annotations
