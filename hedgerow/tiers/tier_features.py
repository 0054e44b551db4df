"""Reads and updates all features of a module at once, from a group of tables in two tiers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..core.shapes import Int64
from ..kernels.output_gradients import Occurrences, OutputGradients
from ..kernels.pool_features import Features
from ..tables.multi.device_bags import BagsOfFeatures, OutputRows
from ..tables.store import Lookup, TableKeys
from .lookup_outputs import PooledOutput, RowsOutput

if TYPE_CHECKING:
    from .misses import Residency
    from .tier_group import TierGroup
    from .tier_tables import TierTables


class TierFeatures:
    """Reads the features of a module from a group that has all tables of a store. Single-owner.

    One lookup finds all keys and fetches misses. Pooling reads rows in the slots that were found,
    and an update goes to the same slots.
    """

    def __init__(self, store: TierTables, group: TierGroup) -> None:
        self._store, self.group, self._tables = store, group, group.device_group

    def rows_of_features(
        self,
        features: Features,
        keys: TableKeys,
        borders: Int64[Tensor, "F+1"],
        sizes: Sequence[int],
        *,
        training: bool,
        step: int,
    ) -> OutputRows:
        """Returns the rows of all ids. `borders` are the offsets of the features' ids."""
        del features
        n, device, room = len(keys.ids), keys.ids.device, max(sizes, default=0)
        out = torch.empty(n, self._store.dims[0], dtype=torch.float32, device=device)
        missing = "training" if training else "zeros"
        output = RowsOutput(self._tables, out)
        found = self.group.lookup(keys, output, missing, step, keys.ids)
        rows = None
        if any(size != room for size in sizes):
            # The place of each id if every feature were padded to the longest, `room`.
            firsts = torch.arange(len(sizes), device=device) * room - borders[:-1]
            shifts = firsts.repeat_interleave(borders.diff(), output_size=n)
            rows = (torch.arange(n, device=device) + shifts).to(torch.int32)
        return OutputRows(out, Occurrences(room, rows), found)

    def pooled_features(
        self,
        features: Features,
        keys: TableKeys,
        bags: BagsOfFeatures,
        *,
        training: bool,
        step: int,
    ) -> OutputRows:
        """Returns the vectors of all bags."""
        shape = (len(keys.ids), self._store.dims[0])
        output = PooledOutput(self._tables, features, bags, shape)
        missing = "training" if training else "zeros"
        found = self.group.lookup(keys, output, missing, step, keys.ids)
        assert output.pooled is not None  # set by `finish`, which the lookup calls
        return OutputRows(output.pooled.vectors, output.pooled.at, found)

    def lookup_of(self, keys: TableKeys, found: Residency) -> Lookup:
        """Returns where a read found the rows, for an update with one gradient per id."""
        rows = torch.empty(0, dtype=torch.float32, device=keys.ids.device)
        return self._store.lookup_at(keys, rows, {self.group: found})

    def learn(
        self, keys: TableKeys, found: Residency, grads: OutputGradients, *, step: int, ts: int
    ) -> bool:
        """Makes one step on all tables at the slots found. Returns False if they cannot."""
        if not self._tables.whole():
            return False
        update = self.group.check(keys, grads, None, step, ts, None, found)
        if update is not None:
            self.group.apply(update)
        return update is not None
