"""Predicted times of tables, from keys, hit rates and devices."""

from __future__ import annotations
