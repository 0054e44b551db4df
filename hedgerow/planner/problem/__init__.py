"""The words of a plan: machines, tables, ways to keep them, answers."""

from __future__ import annotations
