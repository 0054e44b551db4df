"""What a store of K tables of one process answers by asking its tables, wherever those are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor

from ...core.checks import CPU
from ...core.clock import Clock
from ...core.errors import InputError, NotSupportedError, StateError
from ...core.shapes import Float32, Int64
from .. import arguments
from ..config import TableConfig
from ..host import HostTable
from ..policy import PLAIN, UpdatePolicy
from ..stats import TableStats, table_stats
from ..store import Entries, Lookup, TableKeys
from ..summed import SummedGradients, summed
from .host_cells import HostCells
from .multi_config import MultiConfig


class SeveralTables:
    """The part of a store that its tables share out among them, in byte order of their names.

    Tables on a device have the verbs of a `HostTable`, but asking them for rows or their number
    waits for the device.
    """

    config: MultiConfig
    _tables: Sequence[Any]  # HostTable, or a table with its verbs

    @property
    def names(self) -> tuple[str, ...]:
        """The tables, in order."""
        return self.config.names

    @property
    def dims(self) -> tuple[int, ...]:
        """Columns of each table, in order."""
        return self.config.dims

    @property
    def tables(self) -> tuple[HostTable, ...]:
        """The tables themselves, in order."""
        return tuple(self._tables)

    def table(self, k: int = 0) -> HostTable:
        """Table `k` alone: whole rows, scans and statistics are its own."""
        return self._tables[arguments.table_number(k, len(self._tables))]

    def entries(self, keys: TableKeys | Int64[Tensor, "n"]) -> Entries:
        """Whole rows; of several tables, ask `table(k)`."""
        return self._only("entries").entries(keys)

    def scan(self, rows: int | None = None) -> Iterator[Entries]:
        """All rows in slices; of several tables, ask `table(k)`."""
        return self._only("scan").scan(rows)

    def size(self) -> int:
        """Rows of all tables."""
        return sum(table.size() for table in self._tables)

    def __len__(self) -> int:
        return self.size()

    def max_ts(self) -> int:
        """The largest `ts` that a write gave to any table."""
        return max(table.max_ts() for table in self._tables)

    def row_counts(self) -> dict[str, int]:
        """Rows of each table."""
        return {table.config.name: table.size() for table in self._tables}

    def stats_by_table(self) -> dict[str, TableStats]:
        """Rows, bytes, load and counts of each table."""
        return {table.config.name: table_stats(table) for table in self._tables}

    @property
    def reads_ahead(self) -> bool:
        """Whether `prefetch` does something."""
        return False

    def prefetch(self, keys: TableKeys) -> None:
        """Nothing: the rows are here."""
        del keys

    def take_part(self, *, step: int, ts: int, policy: UpdatePolicy = PLAIN) -> bool:
        """False: no other process updates these rows."""
        del step, ts, policy
        return False

    def summed_gradients(
        self,
        at: TableKeys | Lookup,
        grads: Float32[Tensor, "floats"],
        *,
        counts: Int64[Tensor, "n"] | None = None,
        given: bool = True,
    ) -> SummedGradients:
        """The sum of the gradients of each key, for an update at the result."""
        return replace(summed(at, grads, counts, self.dims), given=given)

    def cells(self, ranks: int) -> HostCells | None:
        """None: `lookup` reads what `ranks` ranks ask for."""
        del ranks
        return None

    def configs_to_move(self, where: object) -> dict[str, TableConfig]:
        """The tables, which may still go `where` they are to be: they have no rows."""
        if self.size():
            raise StateError(
                f"tables with {self.size()} rows do not move: bring the model to {where} "
                f"first, then train or hr.load."
            )
        return {table.config.name: table.config for table in self._tables}

    def emptied(self, clock: Clock) -> Self:
        """Raises: only tables in host memory are copied."""
        del clock
        raise not_copied()

    def _only(self, verb: str) -> HostTable:
        if len(self._tables) != 1:
            raise InputError(
                f"{verb} on a store of {len(self._tables)} tables, whose rows differ in width; "
                f"ask one of them: store.table(k).{verb}(...)."
            )
        return self.table()


def stays(here: torch.device, device: torch.device) -> bool:
    """False: tables on `here` do not move, and a module goes to another device without them."""
    if here != CPU and device != here:
        raise StateError(
            f"tables on {here} do not move to {device}: hr.save the model, and hr.load it into "
            f"one that was made there."
        )
    return False


def not_copied() -> NotSupportedError:
    """The error of a copy of a module whose rows are not all in host memory."""
    return NotSupportedError(
        "a copy of a module whose rows are not all in host memory. Use hr.save(model, folder) "
        "and hr.load(model, folder) into a new one."
    )
