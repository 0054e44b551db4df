"""A peer over numpy alone, quick to start; the other fakes go wrong in one place each."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.subject import Subject, serve


class Honest(Subject):
    def fill(self) -> None:
        self._rows = self.work.first_rows(0, self.work.rows)

    def place(self, access: str) -> None:
        self._batches = np.array(self.work.batches(access))

    def lookup(self, batch: int, output: str) -> Any:
        return self._rows[self._batches[batch]]

    def update(self, batch: int, output: str) -> Any:
        np.subtract.at(
            self._rows, self._batches[batch], np.float32(self.work.rate) * self.work.gradients()
        )

    def rows(self, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        return self._rows[numbers]


if __name__ == "__main__":
    serve(Honest)
