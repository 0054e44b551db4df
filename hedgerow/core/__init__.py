"""Modules that all folders may import: errors, checks, ids, hashes, clock, units, counters."""

from __future__ import annotations
