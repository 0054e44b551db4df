"""The `RowStore` interface, its argument and result types, and summed gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from ..core import checks
from ..core.errors import DtypeError, InputError
from ..core.shapes import Bool, Float32, Int8, Int32, Int64
from .optimizers import Rate


@dataclass(frozen=True, slots=True)
class ClipRow:
    """Scales the summed gradient of a row down to this norm if the gradient is longer.

    >>> ClipRow(2.5).clipped(torch.tensor([[3.0, 4.0], [0.6, 0.8]]))
    tensor([[1.5000, 2.0000],
            [0.6000, 0.8000]])
    """

    norm: float

    def __post_init__(self) -> None:
        checks.setting("ClipRow", "norm", self.norm, above=0)

    def clipped(self, grads: Float32[Tensor, "n dim"]) -> Float32[Tensor, "n dim"]:
        """Returns the summed gradients, each scaled down to the limit if it is longer."""
        length = torch.linalg.vector_norm(grads, dim=1, keepdim=True)
        return grads * (self.norm / length.clamp(min=self.norm))


@dataclass(frozen=True, slots=True)
class UpdatePolicy:
    """How a store treats the gradients of an update.

    The store applies the policy at the owner of a row, where the whole gradient of the row is
    known. `not_finite` says what happens to gradients that contain NaN or infinity:

    - "reject": for tables whose `TableConfig.not_finite` is "reject", such a gradient stops the
      update before any row changes. Over ranks, it stops the update on all ranks.
    - "drop": every table leaves the affected rows out and counts them.

    >>> UpdatePolicy(clip=ClipRow(1.0)).rejects, UpdatePolicy(not_finite="drop").rejects
    (True, False)
    """

    clip: ClipRow | None = None
    not_finite: Literal["reject", "drop"] = "reject"

    @property
    def rejects(self) -> bool:
        """Whether a gradient that is not finite can stop an update."""
        return self.not_finite == "reject"


PLAIN = UpdatePolicy()
"""No clipping; each table treats gradients that are not finite as its config says."""


Missing = Literal["zeros", "initializer", "training"]
"""What a lookup returns for an absent id.

"zeros" gives a row of zeros. "initializer" gives the id's initial value. "training" gives what a
model sees in training: the initial value if the table admits every id, and zeros if the table has
an admission rule.
"""


@dataclass(frozen=True, slots=True, eq=False)
class TableKeys:
    """The keys of K tables, table after table, with the tables in byte order of their names.

    `splits` holds Python numbers, so reading it never waits for a device. If only the device knows
    the number of keys (after a dedup on the device), the splits are upper bounds. `used` then
    holds, on the device, the number of valid keys of each table; the rest of each table's part is
    padding and its ids are ignored.

    `distinct` is a promise by the caller that no table has a key twice; a store on a device then
    skips the sort. If a key occurs twice anyway, only one of its gradients may take effect.

    >>> keys = TableKeys(torch.tensor([5, 6, 7]), (0, 1, 3))
    >>> keys.tables, keys.ids_of(1).tolist()
    (2, [6, 7])
    """

    ids: Int64[Tensor, "n"]
    splits: tuple[int, ...]  # K + 1 offsets into `ids`
    used: Int64[Tensor, "K"] | None = None  # on the device of the ids; None = all keys are valid
    distinct: bool = False

    @staticmethod
    def of_one(ids: Int64[Tensor, "n"]) -> TableKeys:
        """Returns the keys of a single table."""
        checks.tensor("ids", ids, torch.int64, (None,), device=None)
        return TableKeys(ids, (0, len(ids)))

    @property
    def tables(self) -> int:
        """The number of tables, K."""
        return len(self.splits) - 1

    def ids_of(self, k: int) -> Int64[Tensor, "n_k"]:
        """Returns the keys of table `k`, padding included."""
        return self.ids[self.splits[k] : self.splits[k + 1]]

    def exact(self) -> TableKeys:
        """Returns the same keys without padding; waits for the device if `used` is set.

        >>> TableKeys(torch.tensor([5, 6, 7]), (0, 3), torch.tensor([2])).exact().ids.tolist()
        [5, 6]
        """
        if self.used is None:
            return self
        rooms = [stop - start for start, stop in pairwise(self.splits)]
        used = [min(max(n, 0), room) for n, room in zip(self.used.tolist(), rooms, strict=True)]
        parts = [self.ids_of(k)[:n] for k, n in enumerate(used)]
        return TableKeys(torch.cat(parts), (0, *accumulate(used)), distinct=self.distinct)


@dataclass(frozen=True, slots=True, eq=False)
class Lookup:
    """The result of a lookup: the rows of all tables, flat, table after table.

    An update accepts the lookup in place of its keys. A store that remembers where it found each
    key writes that to `slots`: the row's slot (-1 = absent, or padding), or the key's position
    among the keys that were sent to their owners. Other stores leave `slots` at None.

    `epoch` identifies the state that the slots refer to. If it differs from the store's current
    epoch, because rows have moved or another store made the lookup, the store searches for the keys
    again.
    """

    keys: TableKeys
    rows: Float32[Tensor, "floats"]
    dims: tuple[int, ...]
    slots: Int64[Tensor, "n"] | Int32[Tensor, "n"] | None = None
    epoch: object | None = None

    def part(self, places: Int64[Tensor, "m"], splits: tuple[int, ...]) -> Lookup:
        """Returns the lookup of the keys at some positions, without their rows.

        `splits` are the offsets of the tables among these positions.

        >>> keys = TableKeys(torch.tensor([5, 6, 7]), (0, 1, 3))
        >>> found = Lookup(keys, torch.zeros(3), (1, 1), torch.tensor([10, 20, 30]))
        >>> part = found.part(torch.tensor([2]), (0, 0, 1))
        >>> part.keys.ids_of(1).tolist(), part.slots.tolist()
        ([7], [30])
        """
        keys, nothing = TableKeys(self.keys.ids[places], splits), self.rows[:0]
        if self.slots is None:  # the epoch describes all keys, not this part
            return Lookup(keys, nothing, self.dims)
        return Lookup(keys, nothing, self.dims, self.slots[places], self.epoch)

    def in_table(self, k: int, own: TableKeys) -> Lookup | TableKeys:
        """Returns where the keys of table `k` were found, or `own` if that is unknown.

        This is for stores whose `epoch` is a tuple with one epoch per table.
        """
        if self.slots is None or not isinstance(self.epoch, tuple):
            return own
        slots = self.slots[self.keys.splits[k] : self.keys.splits[k + 1]]
        return Lookup(own, self.rows[:0], self.dims[k : k + 1], slots, self.epoch[k])

    def rows_of(self, k: int = 0) -> Float32[Tensor, "n_k dim_k"]:
        """Returns the rows of table `k`, without a copy."""
        sizes = [stop - start for start, stop in pairwise(self.keys.splits)]
        start = sum(n * dim for n, dim in zip(sizes[:k], self.dims, strict=False))
        n, dim = sizes[k], self.dims[k]
        return self.rows[start : start + n * dim].view(n, dim)


@dataclass(frozen=True, slots=True, eq=False)
class Joined:
    """The `epoch` of a lookup that joins several lookups with different epochs.

    The keys of the joined lookups follow one another inside each table. The slot of a key is its
    position among the keys of all lookups.
    """

    lookups: tuple[Lookup, ...]

    @staticmethod
    def of(lookups: Sequence[Lookup]) -> Lookup:
        """Joins several lookups of one store into one, without rows.

        >>> keys = TableKeys.of_one(torch.tensor([5, 6]))
        >>> found = [Lookup(keys, torch.zeros(2), (1,), torch.tensor([3, 4]), k) for k in (0, 0, 1)]
        >>> Joined.of(found[:2]).slots.tolist(), Joined.of(found).slots.tolist()
        ([3, 4, 3, 4], [0, 1, 2, 3, 4, 5])
        """
        first, tables = lookups[0], range(lookups[0].keys.tables)
        nothing = first.rows[:0]
        if len(lookups) == 1:
            return Lookup(first.keys, nothing, first.dims, first.slots, first.epoch)
        ids, slots, is_one = list[Tensor](), list[Tensor](), True
        for k in tables:
            for one in lookups:
                start, stop = one.keys.splits[k : k + 2]
                ids.append(one.keys.ids[start:stop])
                if one.slots is None or one.epoch != first.epoch:
                    is_one = False
                else:
                    slots.append(one.slots[start:stop])
        splits = tuple(map(sum, zip(*(one.keys.splits for one in lookups), strict=True)))
        keys = TableKeys(torch.cat(ids), splits)
        if is_one:
            return Lookup(keys, nothing, first.dims, torch.cat(slots), first.epoch)
        places = torch.arange(len(keys.ids), device=keys.ids.device)
        return Lookup(keys, nothing, first.dims, places, Joined(tuple(lookups)))

    def places_of(self, at: Lookup) -> Iterator[tuple[Lookup, Int64[Tensor, "m"], tuple[int, ...]]]:
        """Yields each joined lookup's part of `at`, and the part's positions in `at` and splits."""
        tables, many = range(at.keys.tables), len(self.lookups)
        every = [one.keys.splits for one in self.lookups]
        cells = [splits[k + 1] - splits[k] for k in tables for splits in every]
        ends = list(accumulate(cells))
        moves = [
            splits[k] - ends[k * many + i] + cells[k * many + i]
            for k in tables
            for i, splits in enumerate(every)
        ]
        slots = _there(at.slots)
        cell = torch.searchsorted(_numbers(ends, slots), slots, right=True)
        inside, number = slots + _numbers(moves, slots)[cell], cell % many
        borders = _numbers(at.keys.splits, slots)
        for i, one in enumerate(self.lookups):
            places = (number == i).nonzero().view(-1)
            splits = tuple(torch.searchsorted(places, borders).tolist())
            yield one.part(inside[places], splits), places, splits


def _there(slots: Tensor | None) -> Tensor:
    assert slots is not None  # a `Joined` epoch always comes with slots
    return slots


def _numbers(values: Sequence[int], beside: Tensor) -> Int64[Tensor, "values"]:
    return torch.tensor(values, dtype=torch.int64, device=beside.device)


@dataclass(frozen=True, slots=True, eq=False)
class Applied:
    """What a write did. The counts stay on the rows' device; reading one waits for that device.

    >>> Applied.of(inserted=2)
    Applied(inserted=2, refused=0, dropped=0)
    """

    counts: Int64[Tensor, "3"]

    @staticmethod
    def of(inserted: int = 0, refused: int = 0, dropped: int = 0) -> Applied:
        """Returns an `Applied` with these counts."""
        return Applied(torch.tensor([inserted, refused, dropped], device="cpu"))

    @property
    def inserted(self) -> int:
        """The number of inserted rows."""
        return int(self.counts[0])

    @property
    def refused(self) -> int:
        """The number of ids that were not admitted or found no slot in a store of fixed size."""
        return int(self.counts[1])

    @property
    def dropped(self) -> int:
        """The number of rows or gradients left out because they, or their sum, were not finite."""
        return int(self.counts[2])

    def __repr__(self) -> str:
        return f"Applied(inserted={self.inserted}, refused={self.refused}, dropped={self.dropped})"


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """Whole rows: embeddings, named optimizer states per segment, and times of the last update.

    Absent ids have `found` False and zeros elsewhere. In tables with an `Lru` or `Lfu` rule,
    `order` holds the marks by which rows are ordered for eviction; `restore` accepts them.
    """

    ids: Int64[Tensor, "n"]
    found: Bool[Tensor, "n"]
    rows: Float32[Tensor, "n dim"]
    states: Sequence[Mapping[str, Tensor]]
    ts: Int64[Tensor, "n"]
    order: Int64[Tensor, "n"] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def to(self, device: torch.device | str) -> Entries:
        """Returns the same rows on another device; tensors already there are not copied.

        >>> ids, rows = torch.tensor([7]), torch.zeros(1, 2)
        >>> Entries(ids, ids == 7, rows, [{}], ids).to("cpu").ids.tolist()
        [7]
        """
        states = [{name: x.to(device) for name, x in one.items()} for one in self.states]
        ids, found, rows, ts = (x.to(device) for x in (self.ids, self.found, self.rows, self.ts))
        order = None if self.order is None else self.order.to(device)
        return Entries(ids, found, rows, states, ts, order)


def all_found(n: int) -> Bool[Tensor, "n"]:
    """Returns `n` True values. Uses numpy because torch would wake its thread pool."""
    return torch.from_numpy(np.ones(n, np.bool_))


class Trainable(Protocol):
    """A store whose rows gradients can change."""

    def apply_gradients(
        self,
        at: TableKeys | Lookup,
        grads: Tensor,
        *,
        rates: Sequence[Rate] | None = None,
        step: int | None = None,
        ts: int = 0,
        counts: Tensor | None = None,
        per_occurrence: bool = False,
        policy: UpdatePolicy = PLAIN,
    ) -> Applied:
        """Applies one optimizer step per distinct id, using its summed gradient.

        Absent ids are inserted first. `policy` limits the summed gradient and says what happens to
        one that is not finite.
        """
        ...


class RowStore(Trainable, Protocol):
    """The rows of K tables, in any kind of memory or process. Reading never inserts a row."""

    def lookup(
        self,
        keys: TableKeys,
        *,
        missing: Missing = "zeros",
        step: int | None = None,
        out: Tensor | None = None,
    ) -> Lookup:
        """Returns the rows of `keys`; `missing` says what absent keys give."""
        ...

    def assign(self, keys: TableKeys, rows: Tensor, *, ts: int = 0) -> Applied:
        """Sets rows; keeps their optimizer state."""
        ...

    def assign_add(self, keys: TableKeys, rows: Tensor, *, ts: int = 0) -> Applied:
        """Adds to rows; an absent row starts from its initial value."""
        ...

    def reinitialize(self, keys: TableKeys) -> Int8[Tensor, "n"]:
        """Resets rows and states; returns 1 per key that had a row, and 0 per absent key."""
        ...

    def contains(self, keys: TableKeys) -> Bool[Tensor, "n"]:
        """Returns whether each key has a row."""
        ...

    def table(self, k: int = 0) -> RowStore:
        """Returns the store of table `k` alone, for example for `entries` and `scan`."""
        ...

    def entries(self, keys: TableKeys) -> Entries:
        """Returns whole rows; for a store of one table."""
        ...

    def erase(self, keys: TableKeys) -> Bool[Tensor, "n"]:
        """Removes rows; returns which keys had a row."""
        ...

    def scan(self, rows: int | None = None) -> Iterator[Entries]:
        """Yields all rows in slices of about `rows`; for a store of one table."""
        ...

    def size(self) -> int:
        """Returns the number of rows."""
        ...

    def max_ts(self) -> int:
        """Returns the largest `ts` of all writes."""
        ...


def as_keys(
    keys: TableKeys | Tensor, tables: int, device: torch.device = checks.CPU, *, room: bool = False
) -> TableKeys:
    """Returns checked keys for a store on `device`; a plain tensor holds the keys of one table."""
    if not isinstance(keys, TableKeys):
        checks.tensor("ids", keys, torch.int64, (None,), device)
        if tables != 1:
            raise InputError(f"plain ids given to a store of {tables} tables; pass TableKeys.")
        return TableKeys(keys, (0, len(keys)))
    checks.tensor("ids", keys.ids, torch.int64, (None,), device)
    splits = keys.splits
    if not (isinstance(splits, tuple) and set(map(type, splits)) <= {int}):
        raise DtypeError(f"splits is {splits!r}; pass a tuple of ints, for example (0, {tables}).")
    if len(splits) - 1 != tables:
        raise InputError(f"keys of {len(splits) - 1} tables given to a store of {tables}.")
    rises = len(splits) == 2 or list(splits) == sorted(splits)  # one table: see the next line
    if splits[0] != 0 or splits[-1] != len(keys.ids) or not rises:
        raise InputError(f"splits is {splits}; it must rise from 0 to {len(keys.ids)}, the ids.")
    if keys.used is not None:
        if not room:
            raise InputError("this store takes no padded keys; pass keys.exact().")
        checks.tensor("used", keys.used, torch.int64, (tables,), device)
    return keys


@dataclass(frozen=True, slots=True, eq=False)
class SummedGradients:
    """The sum of the gradients of each key. `counts` says how many gradients each sum contains.

    An in-place change of `grads` changes the update that a later `apply_gradients(at, grads,
    counts=counts)` makes.
    """

    at: TableKeys | Lookup
    grads: Float32[Tensor, "floats"]
    counts: Int64[Tensor, "n"]
    dims: tuple[int, ...]
    given: bool = True  # whether autograd produced a gradient on any rank, even one with no rows

    @property
    def keys(self) -> TableKeys:
        """The distinct keys, table after table."""
        return self.at.keys if isinstance(self.at, Lookup) else self.at

    def grads_of(self, k: int) -> Float32[Tensor, "n_k dim_k"]:
        """Returns the gradients of table `k`, without a copy."""
        return _rows_of(self.grads, self.keys.splits, self.dims)[k]

    def counts_of(self, k: int) -> Int64[Tensor, "n_k"]:
        """Returns the number of gradients summed for each key of table `k`."""
        return self.counts[self.keys.splits[k] : self.keys.splits[k + 1]]

    def clipped(self, clip: ClipRow) -> SummedGradients:
        """Returns the same keys with gradients that are at most as long as the limit."""
        return replace(self, grads=clipped(self.keys, self.grads, self.dims, clip))

    def with_later(self, later: SummedGradients) -> SummedGradients:
        """Returns the sums of these gradients and later ones.

        >>> keys = TableKeys(torch.tensor([7, 7, 8]), (0, 3))
        >>> first = summed(keys, torch.tensor([3.0, 1.0, 0.5]), None, (1,))
        >>> both = first.with_later(summed(keys, torch.ones(3), None, (1,)))
        >>> both.keys.ids.tolist(), both.grads.tolist(), both.counts.tolist()
        ([7, 8], [6.0, 1.5], [4, 2])
        """
        given = self.given or later.given
        if not len(later.counts):
            return replace(self, given=given)
        both = joined([self, later])
        return replace(summed(both.at, both.grads, both.counts, self.dims), given=given)

    def of_given_keys(self) -> SummedGradients:
        """Returns the sums without the keys whose count is 0.

        >>> ids, counts = torch.tensor([7, 8]), torch.tensor([0, 2])
        >>> sums = SummedGradients(TableKeys.of_one(ids), torch.ones(2), counts, (1,))
        >>> sums.of_given_keys().keys.ids.tolist()
        [8]
        """
        places = self.counts.nonzero().view(-1)
        if len(places) == len(self.counts):
            return self
        borders = torch.tensor(self.keys.splits, device=places.device)
        splits = tuple(torch.searchsorted(places, borders).tolist())
        at = self.at
        if isinstance(at, Lookup):
            at = at.part(places, splits)
        else:
            at = TableKeys(at.ids[places], splits)
        grads = _rows_at(self.grads, self.keys.splits, self.dims, places, splits)
        return SummedGradients(at, grads, self.counts[places], self.dims, self.given)


def joined(several: Sequence[SummedGradients]) -> SummedGradients:
    """Concatenates the keys and gradients, table by table; does not add up equal keys."""
    first = several[0]
    if len(several) == 1:
        return first
    tables = range(len(first.dims))
    nothing = first.grads[:0]
    lookups = [
        one.at if isinstance(one.at, Lookup) else Lookup(one.at, nothing, one.dims)
        for one in several
    ]
    grads = [one.grads_of(k).reshape(-1) for k in tables for one in several]
    counts = [one.counts_of(k) for k in tables for one in several]
    return SummedGradients(Joined.of(lookups), torch.cat(grads), torch.cat(counts), first.dims)


def by_lookup(
    at: Lookup,
    grads: Float32[Tensor, "floats"],
    counts: Int64[Tensor, "n"] | None,
) -> list[tuple[Lookup, Float32[Tensor, "own_floats"], Int64[Tensor, "m"] | None]]:
    """Splits a joined lookup into its parts, each with its gradients and counts.

    Any other lookup is returned as the only part.
    """
    if not isinstance(at.epoch, Joined):
        return [(at, grads, counts)]
    found = list[tuple[Lookup, Tensor, Tensor | None]]()
    for one, places, splits in at.epoch.places_of(at):
        own = _rows_at(grads, at.keys.splits, at.dims, places, splits)
        found += by_lookup(one, own, None if counts is None else counts[places])
    return found


def summed(
    at: TableKeys | Lookup,
    grads: Float32[Tensor, "floats"],
    counts: Int64[Tensor, "n"] | None,
    dims: Sequence[int],
) -> SummedGradients:
    """Adds up the gradients of equal keys.

    `counts` says how many gradients each given gradient already contains; None means one. If the
    lookup knows where it found the keys, the result keeps that.
    """
    keys = at.keys if isinstance(at, Lookup) else at
    slots = at.slots if isinstance(at, Lookup) else None
    ids, rows, found, firsts = [], [], [], []
    for k, part in enumerate(_rows_of(grads.reshape(-1), keys.splits, tuple(dims))):
        start, stop = keys.splits[k : k + 2]
        own, inverse = keys.ids[start:stop].unique(return_inverse=True)
        given = torch.ones_like(inverse) if counts is None else counts[start:stop]
        ids.append(own)
        rows.append(part.new_zeros(len(own), dims[k]).index_add_(0, inverse, part).view(-1))
        found.append(torch.zeros_like(own).index_add_(0, inverse, given))
        if slots is not None:
            places = torch.arange(start, stop, device=own.device)
            last = torch.full_like(own, stop)
            firsts.append(last.scatter_reduce_(0, inverse, places, "amin"))
    splits = (0, *accumulate(map(len, ids)))
    where: TableKeys | Lookup = TableKeys(torch.cat(ids), splits)
    if isinstance(at, Lookup) and slots is not None:
        where = at.part(torch.cat(firsts), splits)
    return SummedGradients(where, torch.cat(rows), torch.cat(found), tuple(dims))


def clipped(
    keys: TableKeys, sums: Float32[Tensor, "floats"], dims: Sequence[int], clip: ClipRow
) -> Float32[Tensor, "floats"]:
    """Returns the summed gradients of these keys, each at most as long as the limit."""
    rows = _rows_of(sums, keys.splits, tuple(dims))
    return torch.cat([clip.clipped(part).view(-1) for part in rows])


def _rows_of(
    flat: Tensor, splits: Sequence[int], dims: tuple[int, ...]
) -> list[Float32[Tensor, "n_k dim_k"]]:
    sizes = [stop - start for start, stop in pairwise(splits)]
    parts = flat.split([n * dim for n, dim in zip(sizes, dims, strict=True)])
    return [part.view(-1, dim) for part, dim in zip(parts, dims, strict=True)]


def _rows_at(
    flat: Tensor,
    splits: Sequence[int],
    dims: tuple[int, ...],
    places: Int64[Tensor, "m"],
    own: Sequence[int],
) -> Float32[Tensor, "own_floats"]:
    """Returns the rows at some positions; table `k` has the positions own[k] .. own[k + 1]."""
    rows = [
        part[places[own[k] : own[k + 1]] - splits[k]].view(-1)
        for k, part in enumerate(_rows_of(flat, splits, dims))
    ]
    return torch.cat(rows)
