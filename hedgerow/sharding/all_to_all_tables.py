"""One shard of several tables on every rank, all of them one store of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from ..core import checks
from ..core.errors import ConfigError, InputError
from ..core.recycle import Recycler
from ..core.shapes import Bool, Float32, Int8, Int64
from ..routing.router import Router
from ..tables import arguments
from ..tables.bags import Bags, BagsReader
from ..tables.host import HostTable
from ..tables.module_store import SpreadStore
from ..tables.multi import parts
from ..tables.schedules import Rate
from ..tables.stats import TableStats, table_stats
from ..tables.store import Applied, Entries, Lookup, Missing, RowStore, TableKeys, as_keys
from .brought import Brought
from .delivery import (
    Delivery,
    Merging,
    Push,
    by_rank,
    by_table,
    deliver,
    floats_of,
    start_fetch,
    totals,
)
from .exchange import Exchange, Pending
from .packing import Packed, pack


class ShardStore(RowStore, Protocol):
    """The tables of one rank's shard, as `HostTables` holds them."""

    @property
    def names(self) -> tuple[str, ...]:
        """The tables, in byte order."""
        ...

    @property
    def dims(self) -> tuple[int, ...]:
        """Columns of each table."""
        ...

    def table(self, k: int = 0) -> HostTable:
        """Table `k` alone."""
        ...


class _Journey:
    """Where the keys of a lookup went: an update at the same keys sends its gradients after."""

    __slots__ = ("at", "number", "of", "packed")

    def __init__(self, of: AllToAllTables, packed: Packed, at: Delivery, number: int) -> None:
        self.of, self.packed, self.at, self.number = of, packed, at, number


class PendingLookup:
    """Rows on their way. All ranks wait for theirs before they exchange anything else."""

    __slots__ = ("_coming", "_journey", "_lookup")

    def __init__(self, lookup: Lookup, journey: _Journey, coming: Pending) -> None:
        self._lookup, self._journey, self._coming = lookup, journey, coming

    def wait(self) -> Lookup:
        """The rows, once they are here."""
        self._journey.packed.unpack(self._coming.wait(), self._lookup.rows)
        return self._lookup


class AllToAllTables(SpreadStore):
    """The RowStore of tables whose rows are spread over all ranks of an exchange.

    Every call of keys is a collective: all ranks make the same calls in the same order, each with
    its own keys, perhaps none. `size`, `max_ts`, `table` and what an update tells are those of the
    own shard. `routers` name the owner of a key, one a table. Equal ids leave a rank once (`dedup`)
    with the sum of their gradients; those of several ranks become one optimizer step of the owner,
    summed in the order of ranks (`merge_across_ranks`), or one step a rank. `reduce` says whether
    gradients of ranks are summed or averaged.

    An update takes the lookup in place of keys: then only gradients travel. All ranks pass keys, or
    all pass a lookup. Reads in another thread than writes need an exchange of their own for the
    writes: `updates`.

    >>> from hedgerow.tables.config import Segment, TableConfig
    >>> from hedgerow.tables.initializers import Zeros
    >>> from hedgerow.tables.multi.host_tables import HostTables
    >>> from hedgerow.tables.optimizers import Sgd
    >>> from hedgerow.sharding.local_exchange import LocalExchange
    >>> config = TableConfig("any", (Segment(1, Zeros(), Sgd(lr=1.0)),))
    >>> def work(exchange):
    ...     routers = [Router("roundrobin", exchange.ranks)]
    ...     tables = AllToAllTables(HostTables({"item": config}), routers, exchange, reduce="sum")
    ...     found = tables.lookup(torch.tensor([4, 5, 4]))
    ...     tables.apply_gradients(found, torch.tensor([1.0, 2.0, 3.0]))
    ...     return tables.lookup(torch.tensor([4, 5])).rows.tolist(), tables.size()
    >>> LocalExchange.run(2, work)  # 4 is on rank 0, 5 on rank 1
    [([-8.0, -4.0], 1), ([-8.0, -4.0], 1)]
    """

    def __init__(
        self,
        local: ShardStore,
        routers: Sequence[Router],
        exchange: Exchange,
        *,
        merge_across_ranks: bool = True,
        reduce: str = "mean",
        dedup: bool = True,
        updates: Exchange | None = None,
    ) -> None:
        owner = type(self).__name__
        checks.choice(owner, "reduce", reduce, ("mean", "sum"))
        checks.switch(owner, "merge_across_ranks", merge_across_ranks)
        checks.switch(owner, "dedup", dedup)
        self.local, self.routers = local, tuple(routers)
        self.exchange, self.updates = exchange, updates or exchange
        self._dedup = dedup
        self._lookups = 0  # so far, the same number on every rank
        self._outputs = Recycler()
        self._merging = Merging(merge_across_ranks, 1 if reduce == "sum" else exchange.ranks)
        self._check()

    def _check(self) -> None:
        if len(self.routers) != len(self.local.names):
            raise ConfigError(
                f"{len(self.routers)} routers for {len(self.local.names)} tables; give one a table."
            )
        for name, router in zip(self.local.names, self.routers, strict=True):
            if router.shards != self.exchange.ranks:
                raise ConfigError(
                    f"the router of table {name!r} has {router.shards} shards, the exchange "
                    f"{self.exchange.ranks} ranks; every rank holds one shard."
                )
        if (self.updates.rank, self.updates.ranks) != (self.exchange.rank, self.exchange.ranks):
            raise ConfigError("the exchange of updates has other ranks than that of reads.")

    def __repr__(self) -> str:
        rank, ranks = self.exchange.rank, self.exchange.ranks
        return f"AllToAllTables(rank {rank} of {ranks}, {self.local!r})"

    @property
    def names(self) -> tuple[str, ...]:
        """The tables, in order."""
        return self.local.names

    @property
    def dims(self) -> tuple[int, ...]:
        """Columns of each table, in order."""
        return self.local.dims

    @property
    def device(self) -> torch.device:
        """Where keys and rows are: where the own shard is."""
        return getattr(self.local, "device", checks.CPU)

    @property
    def tables(self) -> tuple[HostTable, ...]:
        """The own shard of each table, in order."""
        return tuple(self.local.table(k) for k in range(len(self.names)))

    def table(self, k: int = 0) -> HostTable:
        """The own shard of table `k`: whole rows, scans and statistics are its own."""
        return self.local.table(k)

    def row_counts(self) -> dict[str, int]:
        """Rows of each table, of the own shard."""
        return {name: self.table(k).size() for k, name in enumerate(self.names)}

    def stats_by_table(self) -> dict[str, TableStats]:
        """Rows, bytes, load and counts of each table, of the own shard."""
        return {name: table_stats(self.table(k)) for k, name in enumerate(self.names)}

    # ---- reads

    def bags_reader(self, bags: Bags) -> BagsReader | None:
        """None: rows come from their owners, and are pooled by torch."""
        del bags
        return None

    def lookup(
        self,
        keys: TableKeys | Int64[Tensor, "n"],
        *,
        missing: Missing = "zeros",
        step: int | None = None,
        out: Float32[Tensor, "floats"] | None = None,
    ) -> Lookup:
        """Rows of `keys` from their owners, flat, into `out` if given. Nothing is inserted."""
        return self.start_lookup(keys, missing=missing, step=step, out=out).wait()

    def start_lookup(
        self,
        keys: TableKeys | Int64[Tensor, "n"],
        *,
        missing: Missing = "zeros",
        step: int | None = None,
        out: Float32[Tensor, "floats"] | None = None,
    ) -> PendingLookup:
        """`lookup` without waiting for the rows: they travel while the caller does other work."""
        arguments.missing_rule(missing)
        keys = self._keys(keys)
        floats = parts.float_offsets(keys.splits, self.dims)[-1]
        if out is not None:
            rows = parts.flat_output(out, floats, self.device)
        elif self.device == checks.CPU:
            rows = self._outputs.take(floats)[0]
        else:  # torch keeps the memory of a device by itself
            rows = torch.empty(floats, device=self.device)
        self._lookups += 1
        journey = self._journey(self.exchange, keys, dedup=self._dedup, number=self._lookups)
        found = start_fetch(
            self.exchange, journey.at, self.local, self.dims, missing=missing, step=step
        )
        return PendingLookup(Lookup(keys, rows, self.dims, epoch=journey), journey, found)

    def contains(self, keys: TableKeys | Int64[Tensor, "n"]) -> Bool[Tensor, "n"]:
        """Whether each key has a row."""
        return self._answers(self.exchange, keys, self.local.contains).bool()

    def entries(self, keys: TableKeys | Int64[Tensor, "n"]) -> Entries:
        """Not offered over ranks: whole rows are at their owners."""
        raise InputError("entries over several ranks; ask an owner: tables.table(k).entries(ids).")

    def scan(self, rows: int | None = None) -> Iterator[Entries]:
        """All rows of the own shard in slices; of several tables, ask `table(k)`."""
        return self.local.scan(rows)

    def size(self) -> int:
        """Rows of the own shard."""
        return self.local.size()

    def __len__(self) -> int:
        return self.size()

    def max_ts(self) -> int:
        """The largest `ts` that a write gave to the own shard."""
        return self.local.max_ts()

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
    ) -> Applied:
        """The owners make one step per distinct id. Rates, step and time are the owner's own."""
        going = self.start_apply(at, grads, counts=counts, per_occurrence=per_occurrence)
        return going(rates=rates, step=step, ts=ts)

    def start_apply(
        self,
        at: TableKeys | Lookup | Int64[Tensor, "n"],
        grads: Float32[Tensor, "floats"],
        *,
        counts: Int64[Tensor, "n"] | None = None,
        per_occurrence: bool = False,
    ) -> Callable[..., Applied]:
        """Sends gradients to their owners; what it gives makes the steps, with `rates`, `step` and
        `ts`. All ranks make them in the order in which they sent."""
        keys = self._keys(at.keys if isinstance(at, Lookup) else at)
        flat = self._flat("grads", grads, keys)
        arguments.occurrences(counts, len(keys.ids), self.device)
        known = at.epoch if isinstance(at, Lookup) else None
        dedup = self._dedup and not per_occurrence
        if isinstance(known, _Journey) and known.of is self and dedup == self._dedup:
            journey = known
        else:
            journey = self._journey(self.updates, keys, dedup=dedup)
        packed = journey.packed
        summed, occurrences = packed.sum_gradients(flat), packed.occurrences(counts)
        push = Push.start(self.updates, journey.at, self.dims, summed, occurrences, self._merging)
        return partial(push.apply, self.local, per_occurrence=per_occurrence)

    def bring_gradients(
        self,
        at: TableKeys | Lookup,
        grads: Float32[Tensor, "floats"],
        *,
        counts: Int64[Tensor, "n"] | None = None,
        finite: bool = True,
        given: bool = False,
    ) -> Brought:
        """Brings gradients to their owners, who decide what to do with the total of each row.

        Some ranks may pass keys and others a lookup: where all pass the same one, no id travels.
        All learn who sends what is not finite, as it travels: an owner who refuses it would be the
        only one to stop. `finite` off counts this rank among them whatever it sends. `given` says
        that this rank has a gradient, be it of no row.
        """
        keys = self._keys(at.keys if isinstance(at, Lookup) else at)
        flat = self._flat("grads", grads, keys)
        arguments.occurrences(counts, len(keys.ids), self.device)
        epoch = at.epoch if isinstance(at, Lookup) else None
        known = epoch if isinstance(epoch, _Journey) and epoch.of is self else None
        packed = known.packed if known else pack(keys, self.dims, self.routers, dedup=self._dedup)
        summed, occurrences = packed.sum_gradients(flat), packed.occurrences(counts)
        bad = not (finite and self.updates.arrives_finite(summed))
        number, n = known.number if known else 0, len(keys.ids)
        own_uses = _occurrences(keys, counts)
        word = torch.tensor([number, n, int(bad), int(given or n > 0), *own_uses])
        words = self.updates.counts(word.repeat(self.updates.ranks)).view(-1, len(word))
        everywhere, not_finite = int(words[:, 1].sum()), tuple(words[:, 2].nonzero()[:, 0].tolist())
        some, uses = bool(words[:, 3].any()), tuple(words[:, 4:].sum(dim=0).tolist())
        if everywhere == 0:  # on all ranks, so that nobody waits for anything
            nothing = TableKeys(keys.ids[:0], (0,) * len(keys.splits))
            return Brought(nothing, flat[:0], keys.ids[:0], 0, uses, not_finite, some)
        if known is None or not bool((words[:, 0] == known.number).all()):
            known = self._sent_off(self.updates, packed)
        merging = replace(self._merging, across_ranks=True)
        push = Push.start(self.updates, known.at, self.dims, summed, occurrences, merging)
        ((mine, arrived, its_counts),) = push.arrived()
        return Brought(mine, arrived, its_counts, everywhere, uses, not_finite, some)

    def assign(
        self, keys: TableKeys | Int64[Tensor, "n"], rows: Float32[Tensor, "floats"], *, ts: int = 0
    ) -> Applied:
        """Sets rows and keeps optimizer state. The last of equals wins, of the highest rank."""
        return self.local.assign(*self._sent(keys, rows), ts=ts)

    def assign_add(
        self, keys: TableKeys | Int64[Tensor, "n"], rows: Float32[Tensor, "floats"], *, ts: int = 0
    ) -> Applied:
        """Adds to rows what all ranks give; an absent one starts from its first value."""
        return self.local.assign_add(*self._sent(keys, rows), ts=ts)

    def reinitialize(self, keys: TableKeys | Int64[Tensor, "n"]) -> Int8[Tensor, "n"]:
        """Makes rows as new; 0 = was absent, 1 = was there. Of equal keys the first comes first."""
        return self._answers(self.updates, keys, self.local.reinitialize).to(torch.int8)

    def erase(self, keys: TableKeys | Int64[Tensor, "n"]) -> Bool[Tensor, "n"]:
        """Removes rows and says which were there."""
        return self._answers(self.updates, keys, self.local.erase).bool()

    # ---- helpers

    def _keys(self, keys: TableKeys | Tensor) -> TableKeys:
        return as_keys(keys, len(self.names), self.device)

    def _flat(self, name: str, rows: Tensor, keys: TableKeys) -> Float32[Tensor, "floats"]:
        n, where = len(keys.ids), self.device
        if len(self.names) == 1:  # as every store of one table: flat or [n, dim]
            return arguments.rows_of_batch(name, rows, n, self.dims[0], where).view(-1)
        return parts.flat_rows(name, rows, parts.float_offsets(keys.splits, self.dims)[-1], where)

    def _journey(
        self, exchange: Exchange, keys: TableKeys, *, dedup: bool, number: int = 0
    ) -> _Journey:
        packed = pack(keys, self.dims, self.routers, dedup=dedup)
        return self._sent_off(exchange, packed, number)

    def _sent_off(self, exchange: Exchange, packed: Packed, number: int = 0) -> _Journey:
        return _Journey(self, packed, deliver(exchange, packed.ids, packed.slot_sizes), number)

    def _sent(
        self, keys: TableKeys | Tensor, rows: Tensor
    ) -> tuple[TableKeys, Float32[Tensor, "floats"]]:
        """All keys and rows that this rank owns, of every rank; duplicates are kept."""
        keys = self._keys(keys)
        flat = self._flat("rows", rows, keys)
        journey = self._journey(self.updates, keys, dedup=False)
        at = journey.at
        leaving, coming = floats_of(at.sent, self.dims), floats_of(at.received, self.dims)
        arrived = self.updates.floats(journey.packed.in_order(flat), leaving, coming, exact=True)
        return at.merged_keys(), by_table(arrived, at.received, self.dims)

    def _answers(
        self, exchange: Exchange, keys: TableKeys | Tensor, verb: Callable[[TableKeys], Tensor]
    ) -> Int64[Tensor, "n"]:
        """What the owners answer to each key."""
        journey = self._journey(exchange, self._keys(keys), dedup=False)
        at = journey.at
        answers = by_rank(verb(at.merged_keys()).to(torch.int64), at.received)
        back = exchange.ids(answers, totals(at.received), totals(at.sent))
        return back[journey.packed.places]


def _occurrences(keys: TableKeys, counts: Int64[Tensor, "n"] | None) -> list[int]:
    """How many occurrences the keys of each table stand for."""
    cuts = list(pairwise(keys.splits))
    if counts is None:
        return [stop - start for start, stop in cuts]
    return [int(counts[start:stop].sum()) for start, stop in cuts]
