"""Finds the newest row of one id in a checkpoint, reading only the files that may hold it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .chain import Chain
from .schema import ID, ORDER, TIME


@dataclass(frozen=True, slots=True)
class FoundRow:
    """One row as the files have it."""

    id: int
    shard: int
    ts: int
    columns: dict[str, Any]  # row and states: numbers or lists of them

    def to_dict(self) -> dict[str, Any]:
        """Fit for JSON."""
        return {"id": self.id, "shard": self.shard, "ts": self.ts, "columns": self.columns}


def find_row(chain: Chain, table: str, key: int) -> FoundRow | None:
    """The row of `key`, or None. Call `chain.verify` first."""
    for part in chain.parts(table):
        if part.router is not None:
            (owner,) = part.router.owners(torch.tensor([key])).tolist()
            if owner != part.file.shard:
                continue
        for rows in part.rows():
            (places,) = np.nonzero(rows.ids == key)
            if len(places):
                row = {name: column[places[0]] for name, column in rows.columns.items()}
                values = {n: v.tolist() for n, v in row.items() if n not in (ID, TIME, ORDER)}
                return FoundRow(key, part.file.shard, int(row[TIME]), values)
    return None
