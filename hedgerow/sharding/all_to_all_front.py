"""Tables over ranks by slot name, with the original's rules: one shard on every rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from torch import Tensor

from ..core import checks
from ..core.errors import InputError, NotSupportedError
from ..core.shapes import Float32, Int64
from ..routing.router import Router
from ..tables.multi.multi_type import MultiTypeTable
from ..tables.multi.native_multi import NativeMultiTable
from ..tables.multi.slot_front import SlotIds, SlotRows
from ..tables.multi.store_front import StoreFront
from ..tables.store import Applied, Lookup
from .all_to_all_tables import AllToAllTables, PendingLookup
from .exchange import Exchange
from .pipeline import Item
from .queues import QueueDepths, Queues, Steps


@dataclass(frozen=True, slots=True, eq=False)
class SlotLookup:
    """Rows by slot, and what an update at the same ids needs."""

    rows: dict[str, Float32[Tensor, "n dim"]]
    found: Lookup


class AllToAllMultiTypeTable(StoreFront):
    """The tables of `local` on every rank of an exchange, each with the rows it owns.

    Every call is a collective. Equal ids leave a rank once; gradients of ranks are one optimizer
    step each, in the order of ranks, as in the original. `queues` holds lookups ahead of training
    and updates behind it, as deep as `queue_configs` says.

    >>> import torch
    >>> from hedgerow.tables.config import Segment, TableConfig
    >>> from hedgerow.tables.initializers import Zeros
    >>> from hedgerow.tables.optimizers import Sgd
    >>> config = TableConfig("any", (Segment(1, Zeros(), Sgd(lr=1.0)),))
    >>> table = AllToAllMultiTypeTable(1, MultiTypeTable({"1": config}), Exchange())
    >>> ids = torch.tensor([1, 1])
    >>> table.apply_gradients({"1": (ids, torch.full((2, 1), 0.5))})
    Applied(inserted=1, refused=0, dropped=0)
    >>> table.lookup({"1": ids})["1"].tolist()
    [[-1.0], [-1.0]]
    """

    store: AllToAllTables

    def __init__(
        self,
        shard_num: int,
        local: MultiTypeTable | NativeMultiTable,
        exchange: Exchange,
        queue_configs: Mapping[str, int | None] | None = None,
        *,
        updates: Exchange | None = None,
    ) -> None:
        if checks.count("shard_num", shard_num) != exchange.ranks:
            raise InputError(
                f"shard_num is {shard_num}, and the world has {exchange.ranks} ranks; every rank "
                f"holds one shard, so they must be equal."
            )
        depths = QueueDepths.of(queue_configs)
        if depths.post_push:
            raise InputError("queue_configs has 'post_push', which is for servers, not for ranks.")
        self.local = local
        routers = [Router("roundrobin", shard_num)] * len(local.names)
        store = AllToAllTables(
            local.store,
            routers,
            exchange,
            merge_across_ranks=False,
            reduce="sum",
            updates=updates,
        )
        super().__init__(store, local.store.config)
        steps: Steps[SlotIds, SlotLookup] = Steps(self._start, self._arrive, self._send, _update)
        self.queues = Queues(depths, steps)

    def assign(self, batch: SlotRows, *, ts: int = 0) -> NoReturn:
        """Not offered over ranks, as in the original."""
        raise NotSupportedError("assign over ranks; every rank assigns to its own `local` tables.")

    def assign_add(self, batch: SlotRows, *, ts: int = 0) -> NoReturn:
        """Not offered over ranks, as in the original."""
        raise NotSupportedError(
            "assign_add over ranks; every rank assigns to its own `local` tables."
        )

    def reinitialize(self, slot: str, ids: Int64[Tensor, "n"]) -> NoReturn:
        """Not offered over ranks, as in the original."""
        raise NotSupportedError(f"reinitialize of slot {slot!r} over ranks; ask the owner's table.")

    # ---- the steps of a batch, between which queues stand

    def _start(self, item: Item[SlotIds]) -> tuple[SlotIds, PendingLookup]:
        return item.value, self.store.start_lookup(self.keys(item.value), step=item.step)

    def _arrive(self, item: Item[tuple[SlotIds, PendingLookup]]) -> SlotLookup:
        ids, coming = item.value
        found = coming.wait()
        return SlotLookup({slot: found.rows_of(self.config.at(slot)) for slot in ids}, found)

    def _send(self, item: Item[tuple[Lookup, Tensor]]) -> Any:
        at, grads = item.value
        return self.store.start_apply(at, grads)

    def put_gradients(
        self, at: SlotLookup, grads: Mapping[str, Tensor], *, step: int = 0, ts: int = 0
    ) -> None:
        """Gradients of what was read; the queues bring them to the rows."""
        batch = {slot: (at.found.keys.ids_of(self.config.at(slot)), g) for slot, g in grads.items()}
        _, flat = self._batch("grads", batch)
        if len(flat) != len(at.found.rows):
            raise InputError(
                f"gradients of slots {sorted(grads)} for rows of {sorted(at.rows)}; give all."
            )
        self.queues.put(Item((at.found, flat), step, ts))


def _update(item: Item[Any]) -> Applied:
    return item.value(step=item.step, ts=item.ts)
