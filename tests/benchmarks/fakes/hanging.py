"""Never answers."""

from __future__ import annotations

import threading

from benchmarks.peers.subject import serve

from .honest import Honest


class Hanging(Honest):
    def fill(self) -> None:
        threading.Event().wait()


if __name__ == "__main__":
    serve(Hanging)
