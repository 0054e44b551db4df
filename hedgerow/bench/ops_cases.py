"""The cases of the ops benchmark, by name, in the order they run."""

from __future__ import annotations

from . import ops_reduce_cases
from .ops_duel import Maker

CASES: dict[str, Maker] = {**ops_reduce_cases.CASES}
