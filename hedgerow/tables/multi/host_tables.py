"""K tables of one process in host memory as one store of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from ... import native
from ...core.checks import CPU
from ...core.clock import Clock
from ...core.recycle import Recycler
from ...core.shapes import Bool, Float32, Int8, Int64
from .. import arguments
from ..bags import Bags, FeatureGroup
from ..config import TableConfig
from ..filters import SlidingFilter
from ..host import HostTable
from ..memory_errors import memory_errors
from ..policy import PLAIN, UpdatePolicy
from ..schedules import Rate
from ..store import Applied, Lookup, Missing, TableKeys, as_keys
from ..summed import summed
from . import parts
from .host_bags import HostBags
from .host_cells import HostCells
from .multi_config import MultiConfig
from .parts import Part
from .several_tables import SeveralTables

_MOST_GROUPS = 64  # of features, that one store keeps ready


class HostTables(SeveralTables):
    """The RowStore of K host tables, in byte order of their names; safe from many threads.

    Keys are `TableKeys` with one split a table; rows and gradients are flat, table after table. A
    call checks its share for every table before it changes the first. A table without keys in a
    call is left alone, its `max_ts` too. `rates` holds one rate a segment, tables in order. Tables
    that count ids for admission share the `filter`, if one is given.

    >>> from hedgerow.tables.config import Segment
    >>> from hedgerow.tables.initializers import Zeros
    >>> from hedgerow.tables.optimizers import Sgd
    >>> def config(dim):
    ...     return TableConfig("any", (Segment(dim, Zeros(), Sgd(lr=0.5)),))
    >>> store = HostTables({"user": config(2), "item": config(1)})
    >>> store.names
    ('item', 'user')
    >>> keys = TableKeys(torch.tensor([7, 7, 8]), (0, 1, 3))
    >>> store.apply_gradients(keys, torch.tensor([1.0, 2.0, 2.0, 4.0, 4.0]))
    Applied(inserted=3, refused=0, dropped=0)
    >>> store.lookup(keys).rows_of(1)
    tensor([[-1., -1.],
            [-2., -2.]])
    """

    def __init__(
        self,
        configs: Mapping[str, TableConfig],
        *,
        clock: Clock | None = None,
        filter: SlidingFilter | None = None,
    ) -> None:
        self.config = MultiConfig.of(configs)
        self._tables = tuple(
            HostTable(config, clock=clock, filter=filter) for config in self.config.configs
        )
        self._outputs = Recycler()
        for table in self._tables:
            table.core.share_outputs(self._outputs, len(self._tables))
        self._readers: list[native.Table] = []  # filled by the first who needs them
        self._groups: dict[FeatureGroup, HostBags] = {}
        self._serves = any(config.serving for config in self.config.configs)

    def __repr__(self) -> str:
        rows = ", ".join(f"{t.config.name!r}: {t.size()}" for t in self._tables)
        return f"HostTables(rows of {rows})"

    @property
    def device(self) -> torch.device:
        """Host memory."""
        return CPU

    @property
    def programs_read(self) -> bool:
        """Exported programs read rows in host memory."""
        return True

    def moves_to(self, device: torch.device) -> bool:
        """To a GPU, while they have no rows."""
        return device.type == "cuda"

    def emptied(self, clock: Clock) -> HostTables:
        """The same tables without rows."""
        return HostTables({table.config.name: table.config for table in self._tables}, clock=clock)

    # ---- reads

    def lookup(
        self,
        keys: TableKeys | Int64[Tensor, "n"],
        *,
        missing: Missing = "zeros",
        step: int | None = None,
        out: Float32[Tensor, "floats"] | None = None,
    ) -> Lookup:
        """Rows of `keys`, flat, into `out` if given. Nothing is inserted."""
        if len(self._tables) == 1:
            alone = self._tables[0].lookup(keys, missing=missing, step=step, out=out)
            return replace(alone, epoch=(alone.epoch,))
        keys = self._keys(keys)
        arguments.missing_rule(missing)
        flat = self._room(keys.splits, out)
        marks = tuple(table.core.mark() for table in self._tables)
        slots = parts.lookup(self._cut(keys, flat), missing=missing, step=step)
        if not slots:  # no update follows, or there are no keys
            return Lookup(keys, flat, self.dims)
        return Lookup(keys, flat, self.dims, torch.cat(slots), marks)

    def bags_reader(self, bags: Bags) -> HostBags | None:
        """What reads and pools these bags in one call; None where only their rows can be read."""
        batch, weights = bags.batch, bags.batch.weights
        plain = batch.values.is_cpu and batch.values.is_contiguous()
        if weights is not None:
            plain = plain and not weights.requires_grad and weights.is_contiguous()
        if not plain or not batch.offsets.is_contiguous() or self._serves:
            return None
        group = self._groups.get(bags.group)
        if group is None:
            if len(self._groups) >= _MOST_GROUPS:
                self._groups.clear()
            group = self._groups[bags.group] = HostBags(self._tables, bags.group, self._outputs)
        return group

    def cells(self, ranks: int) -> HostCells | None:
        """What reads and learns the keys that `ranks` ranks ask for; None: `lookup` does."""
        return HostCells(self._tables, ranks) if HostCells.serves(self._tables) else None

    def lookup_at(
        self,
        ids_at: int,
        splits: Sequence[int],
        missing: Missing,
        step: int | None,
        rows_at: int,
    ) -> None:
        """As `lookup`, of ids at an address into room for rows that the caller has measured."""
        for table, (start, stop) in zip(self._tables, pairwise(splits), strict=True):
            n = stop - start
            table.core.lookup_at(ids_at + 8 * start, n, missing, step, rows_at, reused=True)
            rows_at += 4 * table.layout.dim * n

    def lookup_between(
        self, message: bytes, start: int, splits: Sequence[int], head: bytes, tail: bytes
    ) -> bytes:
        """As `lookup`, of ids that stand in a message, as bytes between two others."""
        if not self._readers:
            self._readers = [table.core.reader() for table in self._tables]
        counts = [stop - first for first, stop in pairwise(splits)]
        return native.lookup_between(self._readers, message, start, counts, head, tail)

    def lookup_cells(
        self,
        ids: Int64[Tensor, "n"],
        id_offsets: Sequence[int],
        *,
        missing: Missing = "zeros",
        step: int | None = None,
        out: Float32[Tensor, "floats"] | None = None,
    ) -> Float32[Tensor, "floats"]:
        """Rows of several batches of keys, one after the other: cell i is of table i modulo K."""
        arguments.missing_rule(missing)
        flat = self._room(id_offsets, out)
        cells = parts.cut(self._tables, ids, id_offsets, flat)
        parts.lookup(cells, missing=missing, step=step)
        return flat

    def contains(self, keys: TableKeys | Int64[Tensor, "n"]) -> Bool[Tensor, "n"]:
        """Whether each key has a row."""
        return self._each(keys, HostTable.contains, torch.bool)

    # ---- writes

    def apply_gradients(
        self,
        at: TableKeys | Lookup | Int64[Tensor, "n"],
        grads: Float32[Tensor, "floats"],
        *,
        rates: Sequence[Rate] | None = None,
        step: int | None = None,
        ts: int = 0,
        counts: Int64[Tensor, "n"] | None = None,
        per_occurrence: bool = False,
        policy: UpdatePolicy = PLAIN,
    ) -> Applied:
        """One optimizer step per table and distinct id, with its summed gradient."""
        keys = self._keys(at.keys if isinstance(at, Lookup) else at)
        grads = self._flat("grads", grads, keys)
        arguments.occurrences(counts, len(keys.ids))
        found = at if isinstance(at, Lookup) else None
        if policy.clip is not None:
            one = summed(found or keys, grads, counts, self.dims).clipped(policy.clip)
            keys, grads, counts = one.keys, one.grads, one.counts
            found = one.at if isinstance(one.at, Lookup) else None
        cells = self._cut(keys, grads, self.config.rates_of(rates), counts, found)
        return parts.apply_gradients(
            cells, step=step, ts=ts, per_occurrence=per_occurrence, reject=policy.rejects
        )

    def assign(
        self,
        keys: TableKeys | Int64[Tensor, "n"],
        rows: Float32[Tensor, "floats"],
        *,
        ts: int = 0,
    ) -> Applied:
        """Sets rows and keeps optimizer state. The last of equals wins."""
        keys = self._keys(keys)
        return parts.assign(self._cut(keys, self._flat("rows", rows, keys)), ts=ts)

    def assign_in(
        self, message: bytes, places: Sequence[tuple[int, int, int]], *, ts: int = 0
    ) -> bool:
        """As `assign`, of what stands in a message: each table's first id, how many, first row.

        False, with nothing changed, where numbers could not stand there in memory, or a table
        rejects a value: `assign` does it, or says why not. The caller has measured the places.
        """
        given = [one for one in zip(self._tables, places, strict=True) if one[1][1]]
        with memory_errors():
            return native.assign_in(
                [table.core.native_table for table, _ in given],
                message,
                [place for _, place in given],
                [table.core.stamps.stamp(ts, place[1]) for table, place in given],
                [table.config.not_finite == "reject" for table, _ in given],
            )

    def assign_add(
        self,
        keys: TableKeys | Int64[Tensor, "n"],
        rows: Float32[Tensor, "floats"],
        *,
        ts: int = 0,
    ) -> Applied:
        """Adds to rows; an absent one starts from its first value."""
        keys = self._keys(keys)
        return parts.assign_add(self._cut(keys, self._flat("rows", rows, keys)), ts=ts)

    def reinitialize(self, keys: TableKeys | Int64[Tensor, "n"]) -> Int8[Tensor, "n"]:
        """Makes rows as new, at the clock's time; 0 = was absent, 1 = was there."""
        keys = self._keys(keys)
        for k, table in enumerate(self._tables):
            if len(keys.ids_of(k)):
                table.core.refuse_serving("reinitialize")
        return self._each(keys, HostTable.reinitialize, torch.int8)

    def erase(self, keys: TableKeys | Int64[Tensor, "n"]) -> Bool[Tensor, "n"]:
        """Removes rows and says which were there."""
        return self._each(keys, HostTable.erase, torch.bool)

    def clear(self) -> None:
        """Removes all rows of all tables."""
        for table in self._tables:
            table.clear()

    # ---- helpers

    def _keys(self, keys: TableKeys | Tensor) -> TableKeys:
        return as_keys(keys, len(self._tables))

    def _flat(self, name: str, rows: Tensor, keys: TableKeys) -> Tensor:
        if len(self._tables) == 1:  # as every store of one table: flat or [n, dim]
            return arguments.rows_of_batch(name, rows, len(keys.ids), self.dims[0]).view(-1)
        return parts.flat_rows(name, rows, parts.float_offsets(keys.splits, self.dims)[-1])

    def _room(self, id_offsets: Sequence[int], out: Tensor | None) -> Tensor:
        floats = parts.float_offsets(id_offsets, self.dims)[-1]
        if out is None:
            return self._outputs.take(floats)[0]
        if len(self._tables) == 1 and isinstance(out, Tensor) and out.dim() == 2:
            return arguments.output(out, id_offsets[-1], self.dims[0]).view(-1)
        return parts.flat_output(out, floats)

    def _cut(
        self,
        keys: TableKeys,
        flat: Tensor,
        rates: Sequence[Sequence[Rate] | None] | None = None,
        counts: Tensor | None = None,
        found: Lookup | None = None,
    ) -> list[Part]:
        return parts.cut(self._tables, keys.ids, keys.splits, flat, rates, counts, found)

    def _each(
        self,
        keys: TableKeys | Tensor,
        verb: Callable[[HostTable, Tensor], Tensor],
        dtype: torch.dtype,
    ) -> Tensor:
        keys = self._keys(keys)
        answers = torch.empty(len(keys.ids), dtype=dtype, device="cpu")
        for table, (start, stop) in zip(self._tables, pairwise(keys.splits), strict=True):
            if start < stop:
                answers[start:stop] = verb(table, keys.ids[start:stop])
        return answers
