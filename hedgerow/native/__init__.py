"""The door to the C++ core. `reference` holds a plain twin of everything here.

Functions take addresses of contiguous CPU memory and lengths and keep nothing; a table's verbs
release the GIL. Callers check dtype, shape and device first.
"""

from __future__ import annotations

from ._native import (
    Codec,
    Segment,
    Table,
    first_not_finite,
    first_values,
    half_neighbours,
    isa,
    isas,
    memory_limit,
    memory_used,
    philox,
    round_to_half,
    rule_names,
    set_isa,
    set_memory_limit,
    set_threads,
    threads,
)

__all__ = [
    "Codec",
    "Segment",
    "Table",
    "first_not_finite",
    "first_values",
    "half_neighbours",
    "isa",
    "isas",
    "memory_limit",
    "memory_used",
    "philox",
    "round_to_half",
    "rule_names",
    "set_isa",
    "set_memory_limit",
    "set_threads",
    "threads",
]
