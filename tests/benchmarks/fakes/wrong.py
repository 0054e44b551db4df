"""Wrong in one bit of one row, or by a little in every update."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.peers.subject import serve

from .honest import Honest


class Wrong(Honest):
    def lookup(self, batch: int, output: str) -> Any:
        rows = super().lookup(batch, output)
        rows[-1, -1] = np.nextafter(rows[-1, -1], np.float32(1))
        return rows

    def update(self, batch: int, output: str) -> Any:
        super().update(batch, output)
        self._rows *= np.float32(1.001)


if __name__ == "__main__":
    serve(Wrong)
