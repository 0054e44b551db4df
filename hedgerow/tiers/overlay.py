"""Entries of one store with rows of another in their place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from ..core.shapes import Int64
from ..tables.host import HostTable
from ..tables.store import Entries

if TYPE_CHECKING:
    from ..tables.device import DeviceTable


def overlay(entries: Entries, newer: HostTable) -> Entries:
    """`entries`, those that `newer` has, too, as they are there."""
    if not newer.size():
        return entries
    return replaced(entries, newer.contains(entries.ids).nonzero()[:, 0], newer)


def replaced(
    entries: Entries, where: Int64[Tensor, "m"], newer: HostTable | DeviceTable
) -> Entries:
    """`entries`, in host memory, those at `where` as `newer` has them; changed in place."""
    if not len(where):
        return entries
    return put_at(entries, where, newer.entries(entries.ids[where].to(newer.device)).to("cpu"))


def put_at(entries: Entries, where: Int64[Tensor, "m"], mine: Entries) -> Entries:
    """`entries` with others at `where`; changed in place."""
    if not len(where):
        return entries
    pairs = zip(entries.states, mine.states, strict=True)
    columns = [(entries.found, mine.found), (entries.rows, mine.rows), (entries.ts, mine.ts)]
    if entries.order is not None and mine.order is not None:
        columns.append((entries.order, mine.order))
    columns += [(old[name], new[name]) for old, new in pairs for name in old]
    for old, new in columns:
        old[where] = new
    return entries
