"""How many keys that a device lacks a list has room for."""

from __future__ import annotations

from collections.abc import Sequence

from ..tables.store import TableKeys
from .places import Ids

_LEAST = 256  # keys of a table


class ListRoom:
    """Room for keys of each table: for about twice what lately was lacking; single-owner.

    >>> import torch
    >>> room, keys = ListRoom(2), TableKeys(torch.arange(10_000), (0, 5000, 10_000))
    >>> room.lacked([1000, 7])
    >>> [room.of(keys) for _ in range(4)]
    [2000, 1000, 500, 256]
    """

    def __init__(self, tables: int) -> None:
        self._tables, self._rows = tables, _LEAST

    def of(self, keys: TableKeys) -> int:
        """Of each table: no more memory than for all keys, however much more one table lacks."""
        room = min(self._rows, max(_LEAST, keys.splits[-1] // self._tables))
        self._rows = max(_LEAST, self._rows // 2)
        return room

    def lacked(self, counts: Sequence[int]) -> None:
        """So many of each table were to be listed: to list them again would take time."""
        self._rows = max(self._rows, 2 * max(counts))


def listed(ids: Ids, counts: Sequence[int], room: int) -> list[Ids]:
    """The ids of each table in a list that has `room` for as many of each.

    >>> import numpy as np
    >>> [part.tolist() for part in listed(np.arange(6), [1, 5], 3)]
    [[0], [3, 4, 5]]
    """
    return [ids[k * room : k * room + min(n, room)] for k, n in enumerate(counts)]
