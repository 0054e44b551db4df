"""Modules that every folder may import: errors, checks, ids, hashing, clock, units, counters,
files."""

from __future__ import annotations
