"""Needs a library that its environment does not have."""

from __future__ import annotations

from benchmarks.peers.subject import serve

from .honest import Honest


class Incomplete(Honest):
    def fill(self) -> None:
        import no_such_library  # noqa: F401


if __name__ == "__main__":
    serve(Incomplete)
