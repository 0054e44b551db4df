"""What a sample of ids says about the keys of a table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyStats:
    """Counts of sampled ids: exact for the hottest keys, and how many keys were seen how often.

    >>> KeyStats(sampled=7, head=(3,), tail=((1, 2), (2, 1))).distinct
    4
    """

    sampled: int
    head: tuple[int, ...]  # times that each of the hottest keys was seen, falling
    tail: tuple[tuple[int, int], ...]  # (times seen, keys seen so often), of all others

    @property
    def distinct(self) -> int:
        """Keys seen at least once."""
        return len(self.head) + sum(keys for _, keys in self.tail)
