"""The interface between a module and the store that holds its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, Self

import torch
from torch import Tensor

from ..core.checks import CPU
from ..core.clock import Clock
from ..core.errors import StateError
from .bags import Bags, BagsReader
from .config import TableConfig
from .multi.several_tables import not_copied, stays
from .policy import PLAIN, UpdatePolicy
from .stats import TableStats
from .store import Learns, Lookup, Missing, TableKeys
from .summed import SummedGradients

if TYPE_CHECKING:
    from .host import HostTable


class ModuleStore(Learns, Protocol):
    """The rows of the tables of one module: in this process, over ranks, or on servers.

    One builder per placement makes the store. Other code uses this interface only.
    """

    @property
    def names(self) -> tuple[str, ...]:
        """The tables, in byte order."""
        ...

    @property
    def dims(self) -> tuple[int, ...]:
        """Columns of each table."""
        ...

    @property
    def device(self) -> torch.device:
        """Where keys and rows of a call are."""
        ...

    @property
    def tables(self) -> Sequence[HostTable]:
        """The tables, or their shards, that this process holds; none of tables on servers."""
        ...

    # ---- a step

    def bags_reader(self, bags: Bags) -> BagsReader | None:
        """What reads these bags pooled; None where their rows are to be read."""
        ...

    def lookup(
        self, keys: TableKeys, *, missing: Missing = "zeros", step: int | None = None
    ) -> Lookup:
        """Rows of `keys`."""
        ...

    def take_part(self, *, step: int, ts: int, policy: UpdatePolicy = PLAIN) -> bool:
        """Takes part in an update without a gradient; whether another process has one.

        Over ranks every update is a collective, and this process may own rows that others have
        gradients of. Other stores do nothing.
        """
        ...

    def summed_gradients(
        self,
        at: TableKeys | Lookup,
        grads: Tensor,
        *,
        counts: Tensor | None = None,
        given: bool = True,
    ) -> SummedGradients:
        """The sum of the gradients of each key, for an update at the result.

        `given` says that this process has a gradient, be it of no row.
        """
        ...

    @property
    def reads_ahead(self) -> bool:
        """Whether `prefetch` does something."""
        ...

    def prefetch(self, keys: TableKeys) -> None:
        """Is told of keys that a later lookup for training will ask for. It changes no number."""
        ...

    # ---- what it holds

    def size(self) -> int:
        """Rows of all tables."""
        ...

    def max_ts(self) -> int:
        """The largest `ts` that a write gave to any table."""
        ...

    def row_counts(self) -> dict[str, int]:
        """Rows of each table: of this process, or of all servers."""
        ...

    def stats_by_table(self) -> dict[str, TableStats]:
        """Rows, bytes, load and counts of each table: of this process, or of all servers."""
        ...

    # ---- changes of place

    def configs_to_move(self, where: object) -> Mapping[str, TableConfig]:
        """The tables, if they may still go `where` they are to be; else raises."""
        ...

    def moves_to(self, device: torch.device) -> bool:
        """Whether tables go along when a module goes there; raises where they cannot."""
        ...

    def emptied(self, clock: Clock) -> Self:
        """A store of the same tables without rows, for a copy of the module; raises elsewhere."""
        ...

    @property
    def programs_read(self) -> bool:
        """Whether exported programs, which run in host memory, can read the rows."""
        ...


class SpreadStore:
    """What stores share whose rows are spread over ranks or servers.

    Keys and rows of a call are on `device`.
    """

    device: torch.device = CPU

    @property
    def programs_read(self) -> bool:
        """Exported programs read these rows as modules do."""
        return True

    def take_part(self, *, step: int, ts: int, policy: UpdatePolicy = PLAIN) -> bool:
        """False: no other process updates these rows together with this one."""
        del step, ts, policy
        return False

    @property
    def reads_ahead(self) -> bool:
        """`prefetch` does nothing."""
        return False

    def prefetch(self, keys: TableKeys) -> None:
        """Does nothing: `lookup` requests the rows."""
        del keys

    def configs_to_move(self, where: object) -> dict[str, TableConfig]:
        """Raises: the rows are spread already."""
        del where
        raise StateError("the model is distributed already; bring it to a device before.")

    def moves_to(self, device: torch.device) -> bool:
        """Returns False: the tables stay where they are."""
        return stays(self.device, device)

    def emptied(self, clock: Clock) -> Self:
        """Raises: this process does not hold all rows."""
        del clock
        raise not_copied()
