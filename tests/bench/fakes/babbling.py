"""Answers what is no JSON."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    for _ in sys.stdin:
        sys.stdout.write("hello\n")
        sys.stdout.flush()
