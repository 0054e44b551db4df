"""Prints to stdout while it is imported and works, as libraries do, and is right all the same."""

from __future__ import annotations

import os
import sys

from benchmarks.peers.subject import serve

from .honest import Honest

sys.stdout.write("this library says hello\n")
sys.stdout.flush()


class Noisy(Honest):
    def place(self, access: str) -> None:
        sys.stdout.write("loading the kernels ...\n")
        sys.stdout.flush()
        os.write(1, b"from C\n")
        super().place(access)


if __name__ == "__main__":
    serve(Noisy)
