"""Benchmarks: ours and every peer on the same work, in the same run, with equal results."""

from __future__ import annotations

from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
"""The repository. Processes of benchmarks start there, or with it on their path."""
