"""The functions and classes of the C++ core.

Functions take addresses of contiguous CPU memory and lengths. They keep no reference to the memory.
The methods of a table release the GIL. Callers must check dtype, shape and device first.

The compiled module is loaded on first use, because device tables also work without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._native import (
        Admission,
        BagRows,
        Bags,
        ChanceAdmission,
        Codec,
        CountAdmission,
        LayoutBatch,
        LayoutPlan,
        RowFile,
        Segment,
        SlidingFilter,
        Table,
        add_rows,
        add_windows,
        admission_probability,
        assign_in,
        bucketize,
        check_part,
        copy_rows,
        copy_windows,
        crc32c,
        fill_windows,
        find_rows,
        first_not_finite,
        first_values,
        fused_reorder,
        gather,
        half_neighbours,
        hash_strings,
        isa,
        isas,
        join_rows,
        learn_bags,
        lookup_between,
        lookup_several,
        mark_keys,
        memory_limit,
        memory_used,
        move_in_several,
        number_fids,
        philox,
        place_fids,
        plain_request,
        plan_split,
        read_several,
        reorder,
        reset_scratch_bytes,
        round_to_half,
        route,
        rows_after,
        rule_names,
        scratch_bytes,
        set_isa,
        set_memory_limit,
        set_threads,
        split_ragged,
        split_rows,
        sum_windows,
        threads,
        unique_with_offsets,
    )

__all__ = [
    "Admission",
    "BagRows",
    "Bags",
    "ChanceAdmission",
    "Codec",
    "CountAdmission",
    "LayoutBatch",
    "LayoutPlan",
    "RowFile",
    "Segment",
    "SlidingFilter",
    "Table",
    "add_rows",
    "add_windows",
    "admission_probability",
    "assign_in",
    "bucketize",
    "check_part",
    "copy_rows",
    "copy_windows",
    "crc32c",
    "fill_windows",
    "find_rows",
    "first_not_finite",
    "first_values",
    "fused_reorder",
    "gather",
    "half_neighbours",
    "hash_strings",
    "isa",
    "isas",
    "join_rows",
    "learn_bags",
    "lookup_between",
    "lookup_several",
    "mark_keys",
    "memory_limit",
    "memory_used",
    "move_in_several",
    "number_fids",
    "philox",
    "place_fids",
    "plain_request",
    "plan_split",
    "read_several",
    "reorder",
    "reset_scratch_bytes",
    "round_to_half",
    "route",
    "rows_after",
    "rule_names",
    "scratch_bytes",
    "set_isa",
    "set_memory_limit",
    "set_threads",
    "split_ragged",
    "split_rows",
    "sum_windows",
    "threads",
    "unique_with_offsets",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'hedgerow.native' has no attribute {name!r}")
    try:
        from . import _native
    except ImportError as error:
        raise ImportError(
            f"the C++ core cannot be loaded here ({error}); install the hedgerow wheel, or run "
            f"`make env` in a checkout."
        ) from error
    value = globals()[name] = getattr(_native, name)
    return value
