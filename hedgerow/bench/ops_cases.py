"""The cases of the ops benchmark, by name, in the order they run."""

from __future__ import annotations

from . import ops_id_cases, ops_layout_cases, ops_reduce_cases, ops_shard_cases
from .ops_duel import Maker

CASES: dict[str, Maker] = {
    **ops_id_cases.CASES,
    **ops_shard_cases.CASES,
    **ops_layout_cases.CASES,
    **ops_reduce_cases.CASES,
}
