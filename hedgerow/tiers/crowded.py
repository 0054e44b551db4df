"""Keys whose rows came to caches on a device and found their buckets full."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import torch

from ..core.ids import distinct_ids
from ..kernels.leave import CROWDED
from ..tables.copies import numbers_on
from ..tables.store import TableKeys
from .found import Rest


class Crowded:
    """Different keys of each of K tables, up to some; single-owner.

    Keys of earlier batches stay, and of too many of one batch others are kept each time: if one was
    always left out, its row would never find a lane.
    """

    def __init__(self, tables: int) -> None:
        self._ids: list[dict[int, None]] = [{} for _ in range(tables)]
        self._begin = 0  # with which of too many

    def __bool__(self) -> bool:
        return any(self._ids)

    @property
    def counts(self) -> list[int]:
        """How many keys of each table."""
        return list(map(len, self._ids))

    def add(self, rest: Rest) -> None:
        """The rows of these found no lane."""
        for k, share in rest.shares():
            mine, ids = self._ids[k], distinct_ids(rest.ids[share].numpy())
            for id_ in np.roll(ids, -self._begin).tolist():
                if len(mine) == CROWDED:
                    break
                mine[id_] = None

    def take(self, device: torch.device) -> TableKeys | None:
        """All of them, which are forgotten."""
        if not self:
            return None
        splits = (0, *accumulate(self.counts))
        keys = TableKeys(numbers_on([id_ for own in self._ids for id_ in own], device), splits)
        for own in self._ids:
            own.clear()
        self._begin += CROWDED
        return keys
