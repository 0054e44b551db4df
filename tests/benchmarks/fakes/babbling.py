"""Answers what is no JSON."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    for _ in sys.stdin:
        os.write(int(sys.argv[-1]), b"hello\n")  # where answers go
