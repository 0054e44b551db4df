"""Tables by slot name whose rows are on parameter servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from ...core import checks
from ...core.counters import Timings
from ...core.errors import NotSupportedError
from ...core.shapes import Float32, Int8, Int64
from ...ps.server_tables import ServerTables
from ...ps.shard import Shard
from ...routing.router import Router
from ...tables.config import TableConfig
from ...tables.multi.several_tables import MultiConfig
from ...tables.store import Missing
from .multi_type import MultiTypeTable, NativeMultiTable
from .slot_tables import SlotIds, StoreFront

DEADLINE_MS = 30  # for a lookup while serving, as in Monolith


class DistributedTable(ServerTables):
    """One logical table over several servers. A call sends one request to each of them.

    >>> from hedgerow.ps.shard import LocalShard
    >>> from hedgerow.tables.config import Segment
    >>> from hedgerow.tables.initializers import Zeros
    >>> from hedgerow.tables.multi.host_tables import HostTables
    >>> from hedgerow.tables.optimizers import Sgd
    >>> config = TableConfig("item", (Segment(1, Zeros(), Sgd(lr=1.0)),))
    >>> shards = [LocalShard(HostTables({"item": config})) for _ in range(2)]
    >>> table = DistributedTable(shards, config)
    >>> _ = table.apply_gradients(torch.tensor([0, 3, 0, 1]), torch.full((4, 1), 2.0))
    >>> table.lookup(torch.tensor([0, 3])).rows.tolist()
    [-4.0, -2.0]
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        config: TableConfig,
        router: Router | None = None,
        *,
        dedup: bool = True,
        timings: Timings | None = None,
        model: str = "",
    ) -> None:
        rules = None if router is None else [router]
        named = {config.name: config}
        super().__init__(shards, named, rules, dedup=dedup, timings=timings, model=model)


class DistributedMultiTypeTable(StoreFront):
    """All tables on every server, each with its share of the rows.

    A call sends one request per server.

    `holds` is the kind of a server's tables: a `NativeMultiTable` takes raw calls, if values are
    transferred as float32, and supports `reinitialize`; otherwise calls are packed by slot.
    `transfer_float16` says that the shards transfer looked-up rows and gradients as half. `serving`
    returns the same servers with the deadline `max_rpc_deadline_millis`, for `serving_lookup`.
    `timings` has a timer "embedding_lookup" per server, tagged `model` and `server`.

    >>> from hedgerow.ps.shard import LocalShard
    >>> from hedgerow.tables.config import Segment
    >>> from hedgerow.tables.initializers import Zeros
    >>> from hedgerow.tables.multi.host_tables import HostTables
    >>> from hedgerow.tables.optimizers import Sgd
    >>> configs = {"1": TableConfig("any", (Segment(2, Zeros(), Sgd(lr=1.0)),))}
    >>> shards = [LocalShard(HostTables(configs)) for _ in range(2)]
    >>> table = DistributedMultiTypeTable(shards, configs)
    >>> ids = torch.tensor([5, 6, 5])
    >>> table.apply_gradients({"1": (ids, torch.ones(3, 2))})
    Applied(inserted=2, refused=0, dropped=0)
    >>> table.lookup({"1": ids})["1"].tolist(), table.path
    ([[-2.0, -2.0], [-1.0, -1.0], [-2.0, -2.0]], 'raw')
    >>> table.timings.read("embedding_lookup", model="", server="0").count
    1
    """

    store: ServerTables

    def __init__(
        self,
        shards: Sequence[Shard],
        configs: Mapping[str, TableConfig],
        routers: Sequence[Router] | None = None,
        *,
        holds: type[NativeMultiTable] | type[MultiTypeTable] = NativeMultiTable,
        transfer_float16: bool = False,
        max_rpc_deadline_millis: int = DEADLINE_MS,
        serving: Callable[[float], Sequence[Shard]] | None = None,
        model: str = "",
    ) -> None:
        self.holds = holds
        self.transfer_float16 = checks.flag("transfer_float16", transfer_float16)
        self.max_rpc_deadline_millis = checks.count(
            "max_rpc_deadline_millis", max_rpc_deadline_millis, least=1
        )
        self.timings, self._model, self._connect = Timings(), model, serving
        config = MultiConfig.of(configs)
        super().__init__(self._over(shards, config, routers), config)
        self._serving: ServerTables | None = None

    def _over(
        self, shards: Sequence[Shard], config: MultiConfig, routers: Sequence[Router] | None
    ) -> ServerTables:
        return ServerTables(shards, config, routers, timings=self.timings, model=self._model)

    @property
    def path(self) -> str:
        """`raw` if all servers are native and values are transferred as float32, else `packed`."""
        return "raw" if self.holds is NativeMultiTable and not self.transfer_float16 else "packed"

    def serving_lookup(
        self, ids: SlotIds, *, missing: Missing = "zeros", step: int | None = None
    ) -> dict[str, Float32[Tensor, "n dim"]]:
        """Performs `lookup` within `max_rpc_deadline_millis`. An error names the late server."""
        if self._serving is None:  # on first use, over separate connections
            shards = self.store.shards
            if self._connect is not None:
                shards = self._connect(self.max_rpc_deadline_millis / 1000)
            self._serving = self._over(shards, self.config, self.store.routers)
        found = self._serving.lookup(self.keys(ids), missing=missing, step=step)
        return {slot: found.rows_of(self.config.at(slot)) for slot in ids}

    def reinitialize(self, slot: str, ids: Int64[Tensor, "n"]) -> Int8[Tensor, "n"]:
        """Resets rows to first values. Returns -1 for an unknown slot. Raw path only."""
        if self.path != "raw":
            raise NotSupportedError(
                f"reinitialize of slot {slot!r} on servers over the packed path; use native tables "
                f"and transfer_float16=False."
            )
        checks.tensor("ids", ids, torch.int64, (None,))
        if slot not in self.config.positions:
            return torch.full((len(ids),), -1, dtype=torch.int8)
        return self.store.reinitialize(self.keys({slot: ids}))
