"""`python -m hedgerow` is the program `hedgerow`."""

from __future__ import annotations

from .cli.app import main

if __name__ == "__main__":
    main()
