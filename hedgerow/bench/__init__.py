"""Benchmarks: ours and every peer on the same work, in the same run, with equal results."""

from __future__ import annotations
