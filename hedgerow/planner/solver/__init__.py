"""The exact solver, and reports of what is missing if no plan fits."""

from __future__ import annotations
