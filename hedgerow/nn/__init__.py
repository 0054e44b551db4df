"""Modules whose rows are in tables: forward reads the rows, and backward updates them."""

from __future__ import annotations
