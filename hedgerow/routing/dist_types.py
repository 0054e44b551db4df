"""The words for the three routing rules and their numbers."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ..core import checks
from ..core.errors import ConfigError
from ..core.shapes import Int32

SUPPORTED_DIST_TYPES = ("continuous", "roundrobin", "hash_roundrobin")
"""What `dist_type` may be; the place in this list is the code of the rule."""


def check_dist_type(owner: str, dist_type: str, rows: int | None) -> None:
    """One of the three words, and rows where the rule needs them.

    >>> check_dist_type("Table", "roundrobin", None)
    """
    checks.choice(owner, "dist_type", dist_type, SUPPORTED_DIST_TYPES)
    if rows is not None:
        checks.whole(owner, "rows", rows)
    if dist_type == "continuous" and not rows:
        raise ConfigError(
            f"{owner}.dist_type is 'continuous' and rows is {rows}; this rule cuts the ids from 0 "
            f"on into equal ranges, so pass rows=, the number of ids."
        )


def codes(dist_types: Iterable[str]) -> Int32[Tensor, "features"]:
    """One number a feature: 0 continuous, 1 roundrobin, 2 hash_roundrobin.

    >>> codes(["hash_roundrobin", "continuous"])
    tensor([2, 0], dtype=torch.int32)
    """
    words = list(dist_types)
    for word in words:
        checks.choice("codes", "dist_type", word, SUPPORTED_DIST_TYPES)
    return torch.tensor([SUPPORTED_DIST_TYPES.index(word) for word in words], dtype=torch.int32)
