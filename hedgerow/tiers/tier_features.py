"""All features of a module over a group of alike tables in two tiers."""

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
    """Reads the features of a module from a group of all tables of a store; single-owner.

    One lookup finds all keys and fetches misses. Pooling reads rows in the slots it found, and an
    update goes to the same slots.
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
        """The rows of all ids; the ids of each feature are between `borders`."""
        del features
        n, device, room = len(keys.ids), keys.ids.device, max(sizes, default=0)
        out = torch.empty(n, self._store.dims[0], dtype=torch.float32, device=device)
        missing = "training" if training else "zeros"
        output = RowsOutput(self._tables, out)
        found = self.group.lookup(keys, output, missing, step, keys.ids)
        rows = None
        if any(size != room for size in sizes):
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
        """The vectors of all bags."""
        shape = (len(keys.ids), self._store.dims[0])
        output = PooledOutput(self._tables, features, bags, shape)
        missing = "training" if training else "zeros"
        found = self.group.lookup(keys, output, missing, step, keys.ids)
        assert output.pooled is not None  # the lookup has finished it
        return OutputRows(output.pooled.vectors, output.pooled.at, found)

    def lookup_of(self, keys: TableKeys, found: Residency) -> Lookup:
        """Where the rows of a read were found, for an update with a gradient for each id."""
        rows = torch.empty(0, dtype=torch.float32, device=keys.ids.device)
        return self._store.lookup_at(keys, rows, {self.group: found})

    def learn(
        self, keys: TableKeys, found: Residency, grads: OutputGradients, *, step: int, ts: int
    ) -> bool:
        """One step on all tables, where rows were found; False if they cannot take one step."""
        if not self._tables.whole():
            return False
        update = self.group.check(keys, grads, None, step, ts, None, found)
        if update is not None:
            self.group.apply(update)
        return update is not None
