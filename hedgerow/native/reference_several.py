"""Calls on several tables at once, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from .reference_rows import Rows
from .reference_values import at

if TYPE_CHECKING:
    from .reference import Table


def read_several(
    tables: Sequence[Rows],
    splits: Sequence[int],
    ids_at: int,
    found_at: int,
    rows_at: int,
    states_at: int,
    times_at: int,
) -> list[int]:
    """`entries` of tables whose rows are alike, table after table; how many of each were found."""
    counts = []
    for table, (start, stop) in zip(tables, pairwise(splits), strict=True):
        row, state = 4 * table.dim() * start, 4 * table.state_floats() * start
        where = (found_at + start, rows_at + row, states_at + state, times_at + 8 * start)
        table.entries(ids_at + 8 * start, stop - start, *where)
        counts.append(int(at(found_at + start, (stop - start,), np.bool_).sum()))
    return counts


def move_in_several(
    tables: Sequence[Table],
    starts: Sequence[int],
    ends: Sequence[int],
    ids_at: int,
    rows_at: int,
    states_at: int,
    times_at: int,
) -> None:
    """`move_in` of rows of tables whose rows are alike, from a start to an end for each."""
    for table, start, end in zip(tables, starts, ends, strict=True):
        row, state = 4 * table.dim() * start, 4 * table.state_floats() * start
        where = (rows_at + row, states_at + state, times_at + 8 * start)
        table.move_in(ids_at + 8 * start, end - start, *where)


def lookup_several(
    tables: Sequence[Rows],
    splits: Sequence[int],
    missing: Sequence[str],
    step: int,
    ids_at: int,
    rows_at: int,
    found_at: int,
) -> None:
    """`lookup` of tables whose rows are alike, table after table, and which ids have a row."""
    for table, rule, (start, stop) in zip(tables, missing, pairwise(splits), strict=True):
        ids, n, row = ids_at + 8 * start, stop - start, 4 * table.dim() * start
        table.lookup(ids, n, rule, step, rows_at + row, True)
        table.contains(ids, n, found_at + start)
