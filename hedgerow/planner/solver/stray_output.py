"""Keeps what a library prints by itself out of our standard output."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stray_output_to_stderr() -> Iterator[None]:
    """While inside, standard output of this process is standard error: reports stay whole."""
    if sys.stdout is not None:
        sys.stdout.flush()
    try:
        kept = os.dup(1)
    except OSError:  # there is no standard output to keep clean
        yield
        return
    try:
        os.dup2(2, 1)
        yield
    finally:
        ctypes.CDLL(None).fflush(None)  # C's own buffer holds lines back where no terminal is
        os.dup2(kept, 1)
        os.close(kept)
