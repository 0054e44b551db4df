"""Statistics of the rows in a checkpoint, in one pass over its files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .chain import Chain
from .schema import ROW, TIME


@dataclass(frozen=True, slots=True)
class TableStatistics:
    """Of one table: rows, mean length of a row, rows of zeros, first and last time of an update."""

    rows: int
    mean_length: float
    zero_rows: int
    oldest_ts: int | None
    newest_ts: int | None

    def to_dict(self) -> dict[str, Any]:
        """Fit for JSON."""
        return asdict(self)


def statistics(
    chain: Chain, table: str, tell: Callable[[int], None] = lambda rows: None
) -> TableStatistics:
    """Reads all rows of a verified chain; `tell` hears how many so far."""
    rows, length, zeros = 0, 0.0, 0
    times: list[int] = []
    for part in chain.rows(table):
        if not len(part):
            continue
        lengths = np.linalg.norm(part.columns[ROW].astype(np.float64), axis=1)
        rows += len(part)
        length += float(lengths.sum())
        zeros += int((lengths == 0).sum())
        ts = part.columns[TIME]
        times = [min([*times[:1], int(ts.min())]), max([*times[1:], int(ts.max())])]
        tell(rows)
    oldest, newest = times if times else (None, None)
    return TableStatistics(rows, length / rows if rows else 0.0, zeros, oldest, newest)
