"""Text that one process of a job writes, not all of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TextIO

from .rank_info import RankInfo


def rank_zero_printer(info: RankInfo, stream: TextIO | None = None) -> Callable[..., None]:
    """A function like `print` that writes in rank 0 alone, at once, to stdout or `stream`.

    >>> say = rank_zero_printer(RankInfo())
    >>> say("loss", 0.5)
    loss 0.5
    """

    def say(*values: object) -> None:
        if info.rank == 0:
            out = sys.stdout if stream is None else stream
            out.write(" ".join(map(str, values)) + "\n")
            out.flush()

    return say
