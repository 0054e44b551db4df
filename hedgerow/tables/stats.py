"""What a table holds and has done, as plain numbers."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.errors import DtypeError
from .own_rows import OwnRows

_PARTS = ("index", "row", "slack", "other", "output")

TableStats = dict[str, str | int | float]


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes a table takes."""

    index_bytes: int
    row_bytes: int  # live rows and their stamps
    slack_bytes: int  # rows kept for new ids, and padding
    other_bytes: int = 0  # parts of pages, changed keys, snapshots, filters, kept outputs

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.index_bytes + self.row_bytes + self.slack_bytes + self.other_bytes


def table_stats(table: OwnRows) -> TableStats:
    """Name, rows, bytes, load and counts of a table, ready for a log or for JSON.

    Bytes are those of the index, of live rows with their time stamps, of slack (room kept for new
    ids, and padding), of others (parts of pages, changed keys, snapshots, filters), of outputs that
    are not in use, kept for the next lookup, and of all together. Working memory that threads keep
    for their next calls, about 45 bytes per id of the largest one, is among others: each table
    counts its part.
    `uncompressed_bytes` is what the rows would take as fp32 without optimizer state. `load_factor`
    is the filled part of the index, `longest_search` the most buckets a search visits. Counts are
    since the table was made.
    """
    if not isinstance(table, OwnRows):
        raise DtypeError(f"stats of a {type(table).__name__}; pass a HostTable or a DeviceTable.")
    counted = table.stats()
    parts = (int(counted[f"{part}_bytes"]) for part in _PARTS)
    return {"name": table.config.name, **counted, "total_bytes": sum(parts)}
