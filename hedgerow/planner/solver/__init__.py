"""The exact choice, and what is missing where there is none."""

from __future__ import annotations
