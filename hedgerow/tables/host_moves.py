"""How rows of a table in host memory go to another store of the same table, and come back."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .. import native
from ..core.shapes import Bool, Int64
from ..core.use_weights import MARK_BITS
from .host_reads import HostStamps, all_found, entry_room
from .layout import RowLayout
from .memory_errors import memory_errors
from .moving import MovingRows


class HostMoves(HostStamps):
    """The part of `HostTable` that tiers use. Of a move nobody is told, and nothing is counted."""

    layout: RowLayout
    native_table: native.Table

    def read_out(self, ids: Int64[Tensor, "n"]) -> MovingRows:
        """Whole rows; those of absent ids are zeros."""
        found = torch.empty(len(ids), dtype=torch.bool, device="cpu")
        room = MovingRows(ids.contiguous(), found, *entry_room(self.layout, len(ids)))
        others = (room.found, room.rows, room.states, room.ts)
        self.native_table.entries(
            room.ids.data_ptr(), len(ids), *(part.data_ptr() for part in others)
        )
        return room

    def move_in(self, moving: MovingRows) -> Bool[Tensor, "n"]:
        """Takes rows; which found room: all of them."""
        here = moving.to("cpu")
        parts = [x.contiguous() for x in (here.ids, here.rows, here.states, here.ts)]
        ids_at, *others = (part.data_ptr() for part in parts)
        with memory_errors():
            self.native_table.move_in(ids_at, len(here), *others)
        return all_found(len(here))

    def move_out(self, ids: Int64[Tensor, "n"]) -> None:
        """Lets rows go."""
        ids = ids.contiguous()
        gone = torch.empty(len(ids), dtype=torch.bool, device="cpu")
        self.native_table.move_out(ids.data_ptr(), len(ids), gone.data_ptr())

    def saw(self, ts: int) -> None:
        """A row was written at this time, in another store."""
        self.native_table.assign(0, 0, 0, ts if self._order is None else ts << MARK_BITS)


def read_several(
    tables: Sequence[HostMoves],
    splits: Sequence[int],
    *,
    ids_at: int,
    found_at: int,
    rows_at: int,
    states_at: int,
    times_at: int,
) -> list[int]:
    """`read_out` of ids of several tables of alike rows, table after table, between addresses.

    How many of each table were found.
    """
    cores = [table.native_table for table in tables]
    return native.read_several(cores, splits, ids_at, found_at, rows_at, states_at, times_at)


def move_in_several(
    tables: Sequence[HostMoves], starts: Sequence[int], ends: Sequence[int], moving: MovingRows
) -> None:
    """`move_in` of rows of several tables of alike rows: those of each lie from start to end.

    If it fails, some have come; it may be tried again.
    """
    parts = (moving.ids, moving.rows, moving.states, moving.ts)
    cores = [table.native_table for table in tables]
    with memory_errors():
        native.move_in_several(cores, starts, ends, *(part.data_ptr() for part in parts))
