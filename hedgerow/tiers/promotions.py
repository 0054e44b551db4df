"""Which rows of several alike tables are hot: counted in one go for all, and moved now and then."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..tables.store import TableKeys
from .found import Rest
from .hybrid import HybridTable
from .uses import SeveralUses

MOVE_STEPS = 16  # of so many, rows move after one: that takes longer than a step
_SOON_STEPS = 2  # while many keys are not on the device
_MANY = 5  # one of so many


class Promotions:
    """What K alike tables of HYBRID do after a step; owned by `Together`."""

    def __init__(self, tables: Sequence[HybridTable]) -> None:
        self._tables = tables
        self._uses = SeveralUses([table._uses for table in tables])
        self._steps = 0  # since rows moved

    def after(self, keys: TableKeys, rest: Rest | None) -> None:
        """After a step on these keys, of which the rest was in the slow tier."""
        self._uses.step(keys)
        self._steps += 1
        absent = 0 if rest is None else len(rest.ids)
        if rest is None or self._steps < (
            _SOON_STEPS if _MANY * absent > len(keys.ids) else MOVE_STEPS
        ):
            return
        for k, share in rest.shares():
            self._tables[k].promote(torch.unique(rest.there[share]), self._steps)
        self._steps = 0
