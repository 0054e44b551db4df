"""`HostTables`: the host tables of one process as one store, and pooled reads of their features.

A cell is the set of keys that one rank requests from one table. The core remembers where it found
the rows of cells, so an update of the same cells does not search for the keys again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from operator import mul

import torch
from torch import Tensor

from ... import native
from ...core.checks import CPU
from ...core.clock import Clock
from ...core.errors import NotFiniteError
from ...core.recycle import Recycler
from ...core.shapes import Bool, Float32, Int8, Int32, Int64
from .. import arguments
from ..admission import SlidingFilter
from ..config import TableConfig
from ..host import HostTable
from ..host_core import RowsMark, memory_errors
from ..module_store import FeatureBags, FeatureGroup, Gradients, TableFeature
from ..optimizers import Rate
from ..store import PLAIN, Applied, Lookup, Missing, TableKeys, UpdatePolicy, as_keys, summed
from . import parts
from .parts import TableCall
from .several_tables import MultiConfig, SeveralTables

_NO_GRADIENT = (0, 0, 0, 0)
_Cells = tuple[int, int, int, list[int], int, int]


class HostBags:
    """Reads and updates one group of features of host tables. Safe from many threads.

    It keeps what does not change from step to step.
    """

    def __init__(self, tables: Sequence[HostTable], group: FeatureGroup, outputs: Recycler) -> None:
        self.features = group.features
        self.tables = tables  # all tables of the store, in order
        self._places = list(group.places)
        self._outputs = outputs
        owners = [tables[feature.table] for feature in self.features]
        self._dims = [table.layout.dim for table in owners]
        kept = [f.pooling[1] if isinstance(f.pooling, tuple) else 0 for f in self.features]
        self._tails = [
            (many, dim) if many else (dim,) for many, dim in zip(kept, self._dims, strict=True)
        ]
        self._unpooled = [i for i, f in enumerate(self.features) if f.pooling == "none"]
        self._shaped: tuple[int, list[int], list[tuple[int, ...]]] = (-1, [], [])
        self._rejects = [table.config.not_finite == "reject" for table in owners]
        self._rejects_any = any(self._rejects)
        fixed = [table.core.fixed_rates for table in tables]
        self.fixed_rates = [one for one in fixed if one is not None] if all(fixed) else None
        self.counts_uses = any(table.order is not None for table in tables)
        self.core = native.Bags(
            [
                (
                    table.core.reader(0),
                    feature.table,
                    feature.pooling if isinstance(feature.pooling, str) else feature.pooling[0],
                    many,
                    table.config.admit is None,
                )
                for table, feature, many in zip(owners, self.features, kept, strict=True)
            ]
        )

    def read(
        self, bags: FeatureBags, *, training: bool, step: int, keep: bool
    ) -> tuple[tuple[Tensor, ...], BagsRead | None]:
        """Returns the vectors of each feature, and with `keep` the read for an update."""
        sizes, shapes = self._shapes(bags)
        flat, reused = self._outputs.take(sum(sizes))
        # Outputs that are not views of one another: autograd allows in-place changes of such
        # outputs.
        outs = torch.unsafe_split_with_sizes(flat, sizes)
        addresses: list[int] = []  # filled in the loop, because a comprehension costs a call
        for out, shape in zip(outs, shapes, strict=True):
            addresses.append(out.resize_(*shape).data_ptr())
        found = self.core.lookup(self._cells(bags), training, step, addresses, reused, keep)
        return outs, None if found is None else BagsRead(self, found)

    def _shapes(self, bags: FeatureBags) -> tuple[list[int], list[tuple[int, ...]]]:
        """Returns the size and shape of each output; cached for the same number of samples."""
        samples, (known, sizes, shapes) = bags.batch.samples, self._shaped
        if known != samples:
            shapes = [(samples, *tail) for tail in self._tails]
            for i in self._unpooled:
                shapes[i] = (len(bags.ids_of(i)), *self._tails[i])
            sizes = [math.prod(shape) for shape in shapes]
            if not self._unpooled:
                self._shaped = (samples, sizes, shapes)
        return sizes, shapes

    def _cells(self, bags: FeatureBags) -> _Cells:
        """Returns the ids of a batch in the form that the core takes."""
        batch = bags.batch
        weights = None if self._unpooled else batch.weights  # unpooled rows are not weighted
        return (
            batch.values.data_ptr(),
            batch.values.shape[0],
            batch.offsets.data_ptr(),
            self._places,
            batch.samples,
            0 if weights is None else weights.data_ptr(),
        )

    def spread(self, found: native.BagRows, i: int, grad: Tensor) -> Float32[Tensor, "n dim"]:
        """Returns the gradient of each id of feature `i`."""
        grad = _plain(grad)
        out = torch.empty(found.count(i), self._dims[i], dtype=torch.float32, device="cpu")
        self.core.spread(found, i, _place(grad), out.data_ptr())
        return out

    def check_finite(
        self, found: native.BagRows, grads: Sequence[Tensor | None], places: list[int]
    ) -> None:
        """Raises for the first gradient that is not finite and that its table rejects."""
        if not self._rejects_any:
            return
        at, bag, column = self.core.not_finite(found, places, self._rejects)
        if at < 0:
            return
        grad, feature = grads[at], self.features[at]
        assert grad is not None
        value = float(grad.reshape(grad.shape[0], -1)[bag, column])
        weighted = " times a weight of its ids" if math.isfinite(value) else ""
        raise NotFiniteError(
            f"the gradient of feature {feature.name!r} at [{bag}, {column}] is {value}{weighted}; "
            f"table {self.tables[feature.table].config.name!r} rejects what is not finite, and "
            f"nothing was changed. Find its source, or make the table with not_finite='drop'."
        )


@dataclass(frozen=True, slots=True, eq=False)
class BagsRead:
    """Bags that were read from host tables, with their ids and the slots of their rows."""

    group: HostBags
    found: native.BagRows

    @property
    def features(self) -> tuple[TableFeature, ...]:
        """The features, in the order of the outputs."""
        return self.group.features

    @property
    def at(self) -> Lookup:
        """Where the rows were found, for updates that need the gradient of each id."""
        tables, sizes = self.group.tables, [0] * len(self.group.tables)
        for i, feature in enumerate(self.features):
            sizes[feature.table] += self.found.count(i)
        ids = torch.cat([self.ids_of(i) for i in range(len(self.features))])
        slots, marks = found_rows(self.found, [one.table for one in self.features], tables)
        dims = tuple(table.layout.dim for table in tables)
        nothing = torch.empty(0, dtype=torch.float32, device="cpu")
        return Lookup(TableKeys(ids, (0, *accumulate(sizes))), nothing, dims, slots, marks)

    def ids_of(self, i: int) -> Int64[Tensor, "n"]:
        """Returns the ids of feature `i`."""
        ids = torch.empty(self.found.count(i), dtype=torch.int64, device="cpu")
        self.found.ids(i, ids.data_ptr())
        return ids

    def key_gradients(self, i: int, grad: Tensor) -> Float32[Tensor, "n dim"]:
        """Returns the gradient of each id of feature `i`."""
        return self.group.spread(self.found, i, grad)

    @property
    def learner(self) -> BagsRead:
        """This object: it applies its own gradients."""
        return self

    def learns(self, given: Sequence[Gradients], clip: float) -> bool:
        """Whether one `learn` call can apply all these gradients: all were read from one store."""
        del clip
        for one in given:
            if not (isinstance(one.read, BagsRead) and one.read.group.tables is self.group.tables):
                return False
        return True

    def learn(self, given: Sequence[Gradients], *, clip: float, step: int, ts: int) -> None:
        """Applies one optimizer step per table and id.

        All checks come before the first row changes.
        """
        tables = self.group.tables
        uses = [0] * len(tables)
        parts, held = [], []  # `held` keeps the memory alive that the core reads
        for one in given:
            read = one.read
            assert isinstance(read, BagsRead)  # `learns` has checked this
            group = read.group
            grads = [None if grad is None else _plain(grad) for grad in one.grads]
            places: list[int] = []  # one flat list: many tuples would trigger the garbage collector
            for grad in grads:
                places += _NO_GRADIENT if grad is None else _place(grad)
            group.check_finite(read.found, grads, places)
            if group.counts_uses:
                _count_uses(read, grads, uses)
            parts.append((group.core, read.found, places))
            held.append(grads)
        rates = self.group.fixed_rates or [table.core.rates_at(step) for table in tables]
        if self.group.counts_uses:
            times = [
                table.core.stamps.stamp(ts, n) if n else 0
                for table, n in zip(tables, uses, strict=True)
            ]
        else:  # all tables have the same clock
            times = [tables[0].core.stamps.stamp(ts, 0)] * len(tables)
        with memory_errors():
            native.learn_bags(parts, step, rates, times, clip)


def found_rows(
    found: native.BagRows, owners: Sequence[int], tables: Sequence[HostTable]
) -> tuple[Int32[Tensor, "n"], tuple[RowsMark | None, ...]]:
    """Returns the slots of the rows of features, and per table the mark that keeps them valid.

    `owners` are the table numbers of the features.
    """
    counts = [found.count(i) for i in range(len(owners))]
    slots = torch.empty(sum(counts), dtype=torch.int32, device="cpu")
    marks: list[RowsMark | None] = [table.core.mark() for table in tables]
    seen: dict[int, int] = {}
    at = slots.data_ptr()
    for i, k in enumerate(owners):
        changes = found.rows(i, at)
        at += 4 * counts[i]
        if seen.setdefault(k, changes) == changes:
            marks[k] = RowsMark(tables[k].core.native_table, changes)
        else:  # rows were inserted or removed while the features of this table were read
            marks[k] = None
    return slots, tuple(marks)


def _count_uses(read: BagsRead, grads: Sequence[Tensor | None], uses: list[int]) -> None:
    """Adds to `uses` the number of ids of each table that have a gradient."""
    for i, (feature, grad) in enumerate(zip(read.features, grads, strict=True)):
        uses[feature.table] += 0 if grad is None else read.found.count(i)


def _plain(grad: Tensor) -> Tensor:
    """Returns the gradient as strided float32, which the core reads by address and strides."""
    if grad.dtype is torch.float32 and grad.layout is torch.strided and not grad.is_neg():
        return grad
    return grad.to_dense().resolve_neg().float()


def _place(grad: Tensor) -> tuple[int, int, int, int]:
    strides = grad.stride()
    return grad.data_ptr(), strides[0], strides[1] if len(strides) == 3 else 0, strides[-1]


@dataclass(frozen=True, slots=True, eq=False)
class CellsRead:
    """Where the rows of cells were found. `floats` holds the offset of each cell's rows."""

    found: native.BagRows
    floats: tuple[int, ...]


class HostCells:
    """Reads and updates the cells of `ranks` ranks, ordered by rank and then by table.

    It serves tables that count no ids: tables without an admission rule and without `Lru` or `Lfu`.
    """

    def __init__(self, tables: Sequence[HostTable], ranks: int) -> None:
        self._tables = tuple(tables)
        self._places = list(range(ranks * len(self._tables)))
        self._dims = [table.layout.dim for table in self._tables] * ranks
        fixed = [table.core.fixed_rates for table in self._tables]
        self._fixed_rates = [rates for rates in fixed if rates is not None] if all(fixed) else None
        self._core = native.Bags(
            [
                (table.core.reader(0), k, "none", 0, True)
                for _ in range(ranks)
                for k, table in enumerate(self._tables)
            ]
        )

    @staticmethod
    def serves(tables: Sequence[HostTable]) -> bool:
        """Returns whether cells of these tables can be read and updated this way."""
        return all(
            table.config.admit is None and table.order is None and not table.config.serving
            for table in tables
        )

    def read(
        self,
        ids: Int64[Tensor, "n"],
        sizes: Sequence[int],
        out: Float32[Tensor, "floats"],
        *,
        training: bool,
        step: int,
    ) -> CellsRead | None:
        """Writes the rows of cells of these `sizes` to `out`; in training, returns their slots."""
        offsets = torch.tensor((0, *accumulate(sizes)), dtype=torch.int64, device="cpu")
        floats = (0, *accumulate(map(mul, sizes, self._dims)))
        cells = (ids.data_ptr(), len(ids), offsets.data_ptr(), self._places, 1, 0)
        at = out.data_ptr()
        addresses = [at + 4 * start for start in floats[:-1]]
        found = self._core.lookup(cells, training, step, addresses, False, training)
        return None if found is None else CellsRead(found, floats)

    def rows_of(self, read: CellsRead) -> tuple[Int32[Tensor, "n"], tuple[RowsMark | None, ...]]:
        """Returns the slots of all keys, and per table the mark that keeps them valid."""
        tables = len(self._tables)
        return found_rows(read.found, [cell % tables for cell in self._places], self._tables)

    def learn(
        self,
        reads: Sequence[CellsRead],
        grads: Sequence[Float32[Tensor, "floats"]],
        *,
        step: int,
        ts: int,
        policy: UpdatePolicy,
    ) -> Applied:
        """Applies one optimizer step per table and distinct id, for the cells of some reads."""
        given = []
        for read, own in zip(reads, grads, strict=True):
            at, places = own.data_ptr(), list[int]()
            for start, dim in zip(read.floats, self._dims, strict=False):
                places += (at + 4 * start, dim, 0, 1)  # the address, and strides
            given.append((self._core, read.found, places))
        rates = self._fixed_rates or [table.core.rates_at(step) for table in self._tables]
        times = [self._tables[0].core.stamps.stamp(ts, 0)] * len(
            self._tables
        )  # all tables have the same clock
        clip = 0.0 if policy.clip is None else policy.clip.norm
        with memory_errors():
            done = native.learn_bags(given, step, rates, times, clip)
        return Applied.of(*done)


_MOST_GROUPS = 64  # feature groups that one store keeps prepared


class HostTables(SeveralTables):
    """The `RowStore` of K host tables, in byte order of their names; safe from many threads.

    Keys are `TableKeys` of K tables. Rows and gradients are flat, table after table. A call checks
    its arguments for every table before it changes the first. A table without keys in a call is not
    touched, and its `max_ts` stays. `rates` holds one rate per segment, for the tables in order. If
    a `filter` is given, the tables that count ids for admission share it.

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
        self._readers: list[native.Table] = []  # filled on first use
        self._groups: dict[FeatureGroup, HostBags] = {}
        self._serves = any(config.serving for config in self.config.configs)

    def __repr__(self) -> str:
        rows = ", ".join(f"{t.config.name!r}: {t.size()}" for t in self._tables)
        return f"HostTables(rows of {rows})"

    @property
    def device(self) -> torch.device:
        """The device of the rows: host memory."""
        return CPU

    @property
    def programs_read(self) -> bool:
        """Whether exported programs can read these rows: yes, in host memory."""
        return True

    def moves_to(self, device: torch.device) -> bool:
        """Returns whether empty tables can move to `device`: only to a GPU."""
        return device.type == "cuda"

    def emptied(self, clock: Clock) -> HostTables:
        """Returns the same tables without rows."""
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
        """Returns the rows of `keys`, flat, in `out` if given. Inserts nothing."""
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

    def bags_reader(self, bags: FeatureBags) -> HostBags | None:
        """Returns what reads and pools these bags in one call; None if `lookup` must be used."""
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
        """Returns what reads and updates the cells of `ranks` ranks; None: use `lookup`."""
        return HostCells(self._tables, ranks) if HostCells.serves(self._tables) else None

    def lookup_at(
        self,
        ids_at: int,
        splits: Sequence[int],
        missing: Missing,
        step: int | None,
        rows_at: int,
    ) -> None:
        """Looks up ids at an address, as `lookup`, and writes their rows to another address.

        The caller has checked that the rows fit.
        """
        for table, (start, stop) in zip(self._tables, pairwise(splits), strict=True):
            n = stop - start
            table.core.lookup_at(ids_at + 8 * start, n, missing, step, rows_at, reused=True)
            rows_at += 4 * table.layout.dim * n

    def lookup_between(
        self, message: bytes, start: int, splits: Sequence[int], head: bytes, tail: bytes
    ) -> bytes:
        """Looks up ids inside a message; returns the rows as bytes between `head` and `tail`."""
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
        """Returns rows of several batches of keys, one after the other.

        Cell i is of table i modulo K.
        """
        arguments.missing_rule(missing)
        flat = self._room(id_offsets, out)
        cells = parts.cut(self._tables, ids, id_offsets, flat)
        parts.lookup(cells, missing=missing, step=step)
        return flat

    def contains(self, keys: TableKeys | Int64[Tensor, "n"]) -> Bool[Tensor, "n"]:
        """Returns whether each key has a row."""
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
        """Applies one optimizer step per table and distinct id, using its summed gradient."""
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
        """Sets rows; keeps optimizer state. Of equal ids, the last one wins."""
        keys = self._keys(keys)
        return parts.assign(self._cut(keys, self._flat("rows", rows, keys)), ts=ts)

    def assign_in(
        self, message: bytes, places: Sequence[tuple[int, int, int]], *, ts: int = 0
    ) -> bool:
        """Assigns rows from a message; `places` holds each table's first id, count and first row.

        Returns False and changes nothing if the numbers are not aligned in memory or a table
        rejects a value. The caller then calls `assign`, which writes the rows or raises the error.
        The caller has checked that the places lie inside the message.
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
        """Adds to rows; an absent row starts from its initial value."""
        keys = self._keys(keys)
        return parts.assign_add(self._cut(keys, self._flat("rows", rows, keys)), ts=ts)

    def reinitialize(self, keys: TableKeys | Int64[Tensor, "n"]) -> Int8[Tensor, "n"]:
        """Resets rows and states, at the clock's time; returns 1 per key that had a row, else 0."""
        keys = self._keys(keys)
        for k, table in enumerate(self._tables):
            if len(keys.ids_of(k)):
                table.core.refuse_serving("reinitialize")
        return self._each(keys, HostTable.reinitialize, torch.int8)

    def erase(self, keys: TableKeys | Int64[Tensor, "n"]) -> Bool[Tensor, "n"]:
        """Removes rows; returns which keys had a row."""
        return self._each(keys, HostTable.erase, torch.bool)

    def clear(self) -> None:
        """Removes all rows of all tables."""
        for table in self._tables:
            table.clear()

    # ---- helpers

    def _keys(self, keys: TableKeys | Tensor) -> TableKeys:
        return as_keys(keys, len(self._tables))

    def _flat(self, name: str, rows: Tensor, keys: TableKeys) -> Tensor:
        if len(self._tables) == 1:  # like every store of one table: flat or [n, dim]
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
    ) -> list[TableCall]:
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
