"""The published planner's variants and times, for comparison."""

from __future__ import annotations
