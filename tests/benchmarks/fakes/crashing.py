"""Dies at its first lookup."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.subject import serve

from .honest import Honest


class Crashing(Honest):
    def lookup(self, batch: int, output: str) -> Any:
        raise ValueError("the roof fell in")


if __name__ == "__main__":
    serve(Crashing)
