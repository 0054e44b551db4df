"""The work as it lies in a folder, read by us and by every peer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_EXACT = 2**24  # whole numbers below this are exact in float32


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Rows numbered in the order of insertion, the ids that own them, and what is asked of them.

    Who cannot take 64-bit ids uses the row number in the place of the id: same rows, same accesses.
    """

    folder: Path
    name: str
    rows: int
    dim: int
    call_ids: int  # of one call while the table is filled
    rate: float
    accumulator: float  # Adagrad's sum of squares at the start; nobody's default, so it is set
    eps: float

    @staticmethod
    def read(folder: Path) -> Work:
        """The work of a folder that `write` filled."""
        return Work(folder=folder, **json.loads((folder / "work.json").read_text()))

    def array(self, name: str) -> NDArray[Any]:
        """One array, mapped and not read."""
        return np.asarray(np.load(self.folder / f"{name}.npy", mmap_mode="r"))

    def ids(self) -> NDArray[np.int64]:
        """The id of every row."""
        return self.array("ids")

    def batches(self, access: str) -> NDArray[np.int64]:
        """Row numbers of each batch."""
        return self.array(f"batches-{access}")

    def sample(self, access: str) -> NDArray[np.int64]:
        """Row numbers that the batches touch, each once, to compare after updates."""
        return self.array(f"sample-{access}")

    def gradients(self) -> NDArray[np.float32]:
        """The gradient of a batch; every batch has the same."""
        return np.array(self.array("gradients"))

    def first_rows(self, start: int, stop: int) -> NDArray[np.float32]:
        """Rows [start, stop) as they are before any update.

        A pattern repeats, and the first column tells its repetitions apart: ten million rows need
        no file of gigabytes.
        """
        return self.first_rows_of(np.arange(start, stop))

    def first_rows_of(self, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        """The same for any row numbers."""
        pattern = self.array("pattern")
        rows = pattern[numbers % len(pattern)]
        rows[:, 0] = (numbers % _EXACT) / _EXACT
        return rows

    def calls(self) -> list[tuple[int, int]]:
        """The slices of rows that fill a table, call by call."""
        starts = range(0, self.rows, self.call_ids)
        return [(start, min(start + self.call_ids, self.rows)) for start in starts]


def write(work: Work, arrays: dict[str, NDArray[Any]]) -> None:
    """Puts the work into its folder."""
    fields = {name: getattr(work, name) for name in Work.__slots__ if name != "folder"}
    work.folder.mkdir(parents=True)
    (work.folder / "work.json").write_text(json.dumps(fields))
    for name, values in arrays.items():
        np.save(work.folder / f"{name}.npy", values)
