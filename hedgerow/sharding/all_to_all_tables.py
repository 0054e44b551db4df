"""The store of tables whose rows are spread over ranks, which exchange keys, rows and gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise, starmap
from typing import NoReturn, Protocol

import torch
from torch import Tensor

from ..core import checks
from ..core.errors import ConfigError, InputError, NotFiniteError
from ..core.recycle import Recycler
from ..core.shapes import Bool, Float32, Int8, Int64
from ..routing.router import Router
from ..tables import arguments
from ..tables.eviction import one_call
from ..tables.host import HostTable
from ..tables.local_table import TableStats, table_stats
from ..tables.module_store import BagsReader, DistributedStore, FeatureBags
from ..tables.multi import parts
from ..tables.multi.host_tables import CellsRead, HostCells
from ..tables.multi.routed_keys import KeyRouter, RoutedKeys
from ..tables.optimizers import Rate
from ..tables.store import (
    PLAIN,
    Applied,
    Entries,
    Lookup,
    Missing,
    RowStore,
    SummedGradients,
    TableKeys,
    UpdatePolicy,
    as_keys,
    by_lookup,
    joined,
    summed,
)
from .delivery import (
    Delivery,
    GradientMerging,
    GradientPush,
    by_rank,
    by_table,
    deliver,
    floats_of,
    totals,
)
from .exchange import Exchange, PendingExchange


class ShardStore(RowStore, Protocol):
    """The tables of one rank's shard, with the methods of `HostTables`."""

    @property
    def names(self) -> tuple[str, ...]:
        """The tables, in byte order."""
        ...

    @property
    def dims(self) -> tuple[int, ...]:
        """The number of columns of each table."""
        ...

    @property
    def device(self) -> torch.device:
        """The device of the keys and rows of calls."""
        ...

    def table(self, k: int = 0) -> HostTable:
        """Returns the store of table `k` alone."""
        ...

    def cells(self, ranks: int) -> HostCells | None:
        """Returns what serves the keys of `ranks` ranks; None if `lookup` must serve them."""
        ...


# What each rank sends before an update: lookups, number of keys, not finite, has a gradient, knows
# cells, some keys of its lookups have no gradient. The uses of each table follow if a table counts
# uses.
_WORDS = 6


class _Sent:
    """The route of the keys of a lookup, and where this rank found the rows that it owns.

    An update at the same keys sends its gradients by the same route. `number` counts lookups and is
    the same on all ranks. It is 0 if keys were routed for an update only.
    """

    __slots__ = ("at", "cells", "coming", "found", "leaving", "number", "of", "packed")

    def __init__(
        self, of: AllToAllTables, packed: RoutedKeys, at: Delivery, number: int = 0
    ) -> None:
        self.of, self.packed, self.at, self.number = of, packed, at, number
        # Floats of the rows sent to and received from each rank. Gradients go the other way.
        self.leaving = floats_of(at.received, of.dims)
        self.coming = floats_of(at.sent, of.dims)
        self.cells: CellsRead | None = None
        self.found: Lookup | None = None


@dataclass(frozen=True, slots=True)
class _Owned:
    """The `epoch` of a lookup whose gradients are summed at the owners of the rows.

    The slots of the lookup are those of the own shard at `epoch`.
    """

    of: AllToAllTables
    epoch: object


@dataclass(frozen=True, slots=True, eq=False)
class _Sums:
    """Summed gradients of keys that were routed to their owners."""

    sent: _Sent
    packed: RoutedKeys
    sums: Float32[Tensor, "floats"]
    counts: Int64[Tensor, "n"] | None  # occurrences of the keys that have gradients
    whole: bool = True  # whether all keys of the lookup have gradients


@dataclass(frozen=True, slots=True, eq=False)
class _Agreed:
    """What all ranks agree on before they send gradients."""

    sums: list[_Sums]  # of this rank, for each lookup; empty if no rank has keys
    given: bool  # whether any rank has a gradient, even one of no rows
    in_cells: bool  # whether every owner knows where the rows are
    whole: bool  # whether all keys that were sent to owners have gradients
    uses: tuple[int, ...] = ()  # of each table on all ranks, if a table counts uses


class PendingLookup:
    """A lookup with rows in flight. All ranks wait for their rows before the next exchange."""

    __slots__ = ("_coming", "_lookup", "_packed")

    def __init__(self, lookup: Lookup, packed: RoutedKeys, coming: PendingExchange) -> None:
        self._lookup, self._packed, self._coming = lookup, packed, coming

    def wait(self) -> Lookup:
        """Waits for the rows and returns the lookup."""
        self._packed.unpack(self._coming.wait(), self._lookup.rows)
        return self._lookup


class AllToAllTables(DistributedStore):
    """The RowStore of tables whose rows are spread over all ranks of an exchange.

    Every call that takes keys is a collective: all ranks make the same calls in the same order.
    Each rank passes its own keys, possibly none. `size`, `max_ts`, `table` and the result of an
    update are those of the own shard. `routers` has one router per table, which gives the owner of
    a key. With `dedup`, equal ids are sent once per rank, with the sum of their gradients. With
    `merge_across_ranks`, the owner adds up the gradients of one id in the order of ranks and makes
    one optimizer step; otherwise it makes one step per rank. `reduce` selects the sum or the mean
    of the gradients of ranks.

    An update can take a lookup in place of keys. If all ranks pass the same lookup, only gradients
    are sent. If one thread reads while another writes, the writes need their own exchange:
    `updates`.

    >>> from hedgerow.tables.config import Segment, TableConfig
    >>> from hedgerow.tables.initializers import Zeros
    >>> from hedgerow.tables.multi.host_tables import HostTables
    >>> from hedgerow.tables.optimizers import Sgd
    >>> from hedgerow.sharding.exchange import LocalExchange
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
        self.names, self.dims = local.names, local.dims
        self.device = local.device
        self._lookups = 0  # so far, the same number on every rank
        self._outputs = Recycler()
        self._merging = GradientMerging(
            merge_across_ranks, 1 if reduce == "sum" else exchange.ranks
        )
        self._check()
        self._by_owner = KeyRouter(self.dims, self.routers)
        self._cells = local.cells(exchange.ranks) if merge_across_ranks else None
        self._counts_uses = any(table.order is not None for table in self.tables)
        self._rejects = [table.config.not_finite == "reject" for table in self.tables]

    def _check(self) -> None:
        if len(self.routers) != len(self.local.names):
            raise ConfigError(
                f"{len(self.routers)} routers for {len(self.local.names)} tables; give one each."
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
    def tables(self) -> tuple[HostTable, ...]:
        """The own shard of each table, in order."""
        return tuple(self.local.table(k) for k in range(len(self.names)))

    def table(self, k: int = 0) -> HostTable:
        """Returns the own shard of table `k`, which has whole rows, scans and statistics."""
        return self.local.table(k)

    def row_counts(self) -> dict[str, int]:
        """Returns the number of rows of each table in the own shard."""
        return {name: self.table(k).size() for k, name in enumerate(self.names)}

    def stats_by_table(self) -> dict[str, TableStats]:
        """Returns rows, bytes, load and counters of each table in the own shard."""
        return {name: table_stats(self.table(k)) for k, name in enumerate(self.names)}

    # ---- reads

    def bags_reader(self, bags: FeatureBags) -> BagsReader | None:
        """Returns None: rows come from their owners and are pooled by torch."""
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
        """Returns the rows of `keys`, flat, in `out` if given. Inserts nothing."""
        return self.start_lookup(keys, missing=missing, step=step, out=out).wait()

    def start_lookup(
        self,
        keys: TableKeys | Int64[Tensor, "n"],
        *,
        missing: Missing = "zeros",
        step: int | None = None,
        out: Float32[Tensor, "floats"] | None = None,
    ) -> PendingLookup:
        """Starts a `lookup` and returns while the rows are in flight."""
        arguments.missing_rule(missing)
        keys = as_keys(keys, len(self.names), self.device)
        packed = self._by_owner.pack(keys, dedup=self._dedup)
        floats = self._floats(keys)
        if out is not None:
            rows = parts.flat_output(out, floats, self.device)
        elif self.device == checks.CPU:
            rows = self._outputs.take(floats)[0]
        else:  # torch reuses the memory of a device by itself
            rows = torch.empty(floats, device=self.device)
        self._lookups += 1
        at = deliver(self.exchange, packed.ids, packed.slot_sizes)
        sent = _Sent(self, packed, at, self._lookups)
        coming = self._read_own(sent, missing, step)
        found = Lookup(keys, rows, self.dims, packed.places, sent)
        return PendingLookup(found, packed, coming)

    def _read_own(self, sent: _Sent, missing: Missing, step: int | None) -> PendingExchange:
        """Reads the rows that all ranks request of this owner, and starts to send them."""
        at = sent.at
        if self._cells is not None and step is not None and missing != "initializer":
            rows = self._outputs.take(sum(sent.leaving))[0]
            training, sizes = missing == "training", list(chain.from_iterable(at.received))
            sent.cells = self._cells.read(at.ids, sizes, rows, training=training, step=step)
        else:
            found = self.local.lookup(at.merged_keys(), missing=missing, step=step)
            rows = by_rank(found.rows, at.received, self.dims)
            sent.found = replace(found, rows=found.rows[:0].clone())
        return self.exchange.start_floats(rows, sent.leaving, sent.coming)

    def contains(self, keys: TableKeys | Int64[Tensor, "n"]) -> Bool[Tensor, "n"]:
        """Returns whether each key has a row."""
        return self._answers(self.exchange, keys, self.local.contains).bool()

    def entries(self, keys: TableKeys | Int64[Tensor, "n"]) -> Entries:
        """Raises: whole rows are read from their owners, with `table(k).entries(ids)`."""
        raise InputError("entries of several ranks; call tables.table(k).entries(ids) at an owner.")

    def scan(self, rows: int | None = None) -> Iterator[Entries]:
        """Yields all rows of the own shard in slices. With several tables, use `table(k)`."""
        return self.local.scan(rows)

    def size(self) -> int:
        """Returns the number of rows in the own shard."""
        return self.local.size()

    def __len__(self) -> int:
        return self.size()

    def max_ts(self) -> int:
        """Returns the largest `ts` of all writes to the own shard."""
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
        policy: UpdatePolicy = PLAIN,
    ) -> Applied:
        """Makes one optimizer step per distinct id at its owner, with the owner's rates and step.

        Some ranks can pass keys and others a lookup. If all ranks pass the same lookup, no ids are
        sent.
        """
        if isinstance(at, Lookup) and isinstance(at.epoch, _Owned) and at.epoch.of is self:
            uses = self._agree_on_own(at.keys, grads, counts, policy)
            left = replace(policy, not_finite="drop")  # all ranks have agreed on what to refuse
            own = replace(at, epoch=at.epoch.epoch)
            with self._one_call_of_all_ranks(uses, ts):
                return self.local.apply_gradients(
                    own, grads, rates=rates, step=step, ts=ts, counts=counts, policy=left
                )
        plain = rates is None and counts is None and not per_occurrence and step is not None
        agreed = self._agree(at, grads, counts, policy, dedup=not per_occurrence, plain=plain)
        return self._step(agreed, policy, rates, step, ts, per_occurrence)

    def take_part(self, *, step: int, ts: int, policy: UpdatePolicy = PLAIN) -> bool:
        """Takes part in an update without gradients. Returns whether any other rank has some.

        The policy applies to gradients of other ranks for rows that this rank owns.
        """
        keys = TableKeys(self._empty(torch.int64), (0,) * (len(self.names) + 1))
        nothing = self._empty(torch.float32)
        agreed = self._agree(keys, nothing, None, policy, plain=True, given=False)
        self._step(agreed, policy, None, step, ts, False)
        return agreed.given

    def summed_gradients(
        self,
        at: TableKeys | Lookup,
        grads: Float32[Tensor, "floats"],
        *,
        counts: Int64[Tensor, "n"] | None = None,
        given: bool = True,
    ) -> SummedGradients:
        """Sends the gradients of all ranks to the owners of their rows, and adds them up there.

        An update at the result changes rows of this rank only. It is still a collective.
        """
        policy = UpdatePolicy(not_finite="drop")
        agreed = self._agree(at, grads, counts, policy, given=given)
        nothing = TableKeys(self._empty(torch.int64), (0,) * (len(self.names) + 1))
        came = SummedGradients(nothing, grads[:0], nothing.ids, self.dims)
        if agreed.sums:
            merging = replace(self._merging, across_ranks=True)
            (came,) = self._arrived(self._push(agreed, merging), agreed)
        found = summed(came.at, came.grads, came.counts, self.dims)
        slots, epoch = torch.full_like(found.counts, -1), None
        if isinstance(found.at, Lookup):
            slots, epoch = found.at.slots, found.at.epoch
        own = Lookup(found.keys, found.grads[:0], self.dims, slots, _Owned(self, epoch))
        return replace(found, at=own, given=agreed.given)

    def start_apply(
        self,
        at: TableKeys | Lookup | Int64[Tensor, "n"],
        grads: Float32[Tensor, "floats"],
        *,
        counts: Int64[Tensor, "n"] | None = None,
        per_occurrence: bool = False,
    ) -> Callable[..., Applied]:
        """Sends gradients to their owners. Returns a function that makes the optimizer steps.

        The function takes `rates`, `step` and `ts`. All ranks must call these functions in the
        order in which they sent the gradients.
        """
        agreed = self._agree(at, grads, counts, PLAIN, dedup=not per_occurrence)
        if not agreed.sums:
            return _nothing_applied
        pushes = self._push(agreed, self._merging)
        left = UpdatePolicy(not_finite="drop")
        return partial(self._apply, pushes, agreed, left, per_occurrence)

    def _agree(
        self,
        at: TableKeys | Lookup | Tensor,
        grads: Tensor,
        counts: Tensor | None,
        policy: UpdatePolicy,
        *,
        dedup: bool = True,
        plain: bool = False,
        given: bool = True,
    ) -> _Agreed:
        """Sums the gradients of this rank, and agrees with all ranks on what the update contains.

        If ranks update at different lookups, or at keys, the keys are sent again.
        """
        keys = as_keys(at.keys if isinstance(at, Lookup) else at, len(self.names), self.device)
        flat = self._flat("grads", grads, keys)
        if counts is not None:
            arguments.occurrences(counts, len(keys.ids), self.device)
        dedup = dedup and self._dedup
        sums = self._sums(at, flat, counts) if dedup == self._dedup else []
        number, whole, known = 0, True, plain and len(sums) > 0
        for one in sums:
            number = hash((number, one.sent.number)) % 2**62
            whole, known = whole and one.whole, known and one.whole and one.sent.cells is not None
        if len(sums) > 1 and not known:
            sums = self._sums(*_each_key_once(at, flat, counts, self.dims))
        packed = list[tuple[RoutedKeys, Tensor]]()
        for one in sums:
            packed.append((one.packed, one.sums))
        if not packed and len(keys.ids):
            packed = [self._packed(keys, flat, dedup)]
        bad = policy.rejects and not all(starmap(self._arrives_finite, packed))
        own = (number, len(keys.ids), bad, given, known, not whole)
        words, uses = self._words(keys, counts, own)
        in_cells, some = all(words[4::_WORDS]), any(words[5::_WORDS])
        if not any(words[1::_WORDS]):  # no rank has keys
            sums = []
        elif not number or words[::_WORDS].count(number) < self.updates.ranks:
            if len(packed) != 1:  # none, or from several lookups that other ranks do not have
                packed = [self._packed(keys, flat, dedup)]
            sums = [self._delivered(*packed[0], sums[0].counts if len(sums) == 1 else counts)]
        elif len(sums) > 1 and not in_cells:
            some = True  # a key of two lookups is sent with the first
            if known:
                sums = self._sums(*_each_key_once(at, flat, counts, self.dims))
        return _Agreed(sums, any(words[3::_WORDS]), in_cells, not some, uses)

    def _sums(
        self, at: TableKeys | Lookup | Tensor, flat: Tensor, counts: Tensor | None
    ) -> list[_Sums]:
        """Returns the sums for each lookup, or none if another store made one of the lookups."""
        found = list[_Sums]()
        for one, grads, own in by_lookup(at, flat, counts) if isinstance(at, Lookup) else ():
            sent, places = one.epoch, one.slots
            if not (isinstance(sent, _Sent) and sent.of is self and places is not None):
                return []
            packed = sent.packed
            if places is not packed.places:
                packed = packed.part(places, one.keys.splits)
            whole = len(places) == len(sent.packed.places)
            found.append(_Sums(sent, packed, packed.sum_gradients(grads), own, whole))
        return found

    def _packed(self, keys: TableKeys, flat: Tensor, dedup: bool) -> tuple[RoutedKeys, Tensor]:
        """Routes keys that were not looked up, and returns them with their summed gradients."""
        packed = self._by_owner.pack(keys, dedup=dedup)
        return packed, packed.sum_gradients(flat)

    def _delivered(self, packed: RoutedKeys, sums: Tensor, counts: Tensor | None) -> _Sums:
        """Sends keys to their owners, and returns the route with the sums."""
        at = deliver(self.updates, packed.ids, packed.slot_sizes)
        return _Sums(_Sent(self, packed, at), packed, sums, counts)

    def _words(
        self, keys: TableKeys, counts: Tensor | None, own: tuple[int, ...]
    ) -> tuple[list[int], tuple[int, ...]]:
        """Returns the words of all ranks, and the uses of each table on all ranks.

        Raises on all ranks if one rank has gradients that it must not send.
        """
        if self._counts_uses:
            own = (*own, *_occurrences(keys, counts))
        words = self.updates.words(torch.tensor(own, dtype=torch.int64, device="cpu")).tolist()
        uses: tuple[int, ...] = ()
        if self._counts_uses:
            each = len(own)
            by_rank = [words[at : at + each] for at in range(0, len(words), each)]
            uses = tuple(map(sum, zip(*(one[_WORDS:] for one in by_rank), strict=True)))
            words = [word for one in by_rank for word in one[:_WORDS]]
        if any(words[2::_WORDS]):
            self._refuse([rank for rank, bad in enumerate(words[2::_WORDS]) if bad])
        return words, uses

    def _one_call_of_all_ranks(self, uses: Sequence[int], ts: int) -> ExitStack:
        """Makes the writes of this rank in an update count as the one use that all ranks share.

        Otherwise the use marks of rows in two shards would not be comparable after a load that
        joins the shards.
        """
        calls = ExitStack()
        for table, n in zip(self.tables, uses, strict=True) if uses else ():
            if n:
                calls.enter_context(one_call(table.order, ts, n))
        return calls

    def _arrives_finite(self, packed: RoutedKeys, sums: Tensor) -> bool:
        """Returns whether all gradients arrive finite at tables that reject others."""
        if not all(self._rejects):
            sizes = packed.slot_sizes.tolist()
            tables = len(self.dims)
            cells = sums.split([n * self.dims[i % tables] for i, n in enumerate(sizes)])
            kept = [cell for i, cell in enumerate(cells) if self._rejects[i % tables]]
            sums = torch.cat(kept) if kept else sums[:0]
        return self.updates.arrives_finite(sums)

    def _refuse(self, ranks: Sequence[int]) -> NoReturn:
        raise NotFiniteError(
            f"row gradients that came from rank {', '.join(map(str, ranks))} have a NaN or an "
            f"infinity; no row was changed on any rank. Find its source, or leave such steps out "
            f"with hr.hold_updates(model, scaler)."
        )

    def _agree_on_own(
        self, keys: TableKeys, grads: Tensor, counts: Tensor | None, policy: UpdatePolicy
    ) -> tuple[int, ...]:
        """Raises on all ranks if gradients that are summed at their owners are not finite.

        Returns the uses of each table on all ranks.
        """
        bad = policy.rejects and any(self._rejects) and not bool(grads.isfinite().all())
        return self._words(keys, counts, (0, len(grads), bad, True, False, False))[1]

    def _step(
        self,
        agreed: _Agreed,
        policy: UpdatePolicy,
        rates: Sequence[Rate] | None,
        step: int | None,
        ts: int,
        per_occurrence: bool,
    ) -> Applied:
        """Sends gradients to the owners, which make the optimizer steps."""
        if not agreed.sums:  # on all ranks, so no rank waits for another
            return Applied.of()
        left = replace(policy, not_finite="drop")  # all ranks have agreed on what to refuse
        cells = [one.sent.cells for one in agreed.sums if one.sent.cells is not None]
        if agreed.in_cells and self._cells is not None and len(cells) == len(agreed.sums):
            grads = list[Tensor]()
            for one in agreed.sums:
                sent = one.sent
                going = self.updates.start_floats(one.sums, sent.coming, sent.leaving)
                grads.append(going.wait())
                if self._merging.divide_by != 1:
                    grads[-1] = grads[-1] / self._merging.divide_by
            return self._cells.learn(cells, grads, step=step or 0, ts=ts, policy=left)
        pushes = self._push(agreed, self._merging)
        return self._apply(pushes, agreed, left, per_occurrence, rates=rates, step=step, ts=ts)

    def _apply(
        self,
        pushes: Sequence[GradientPush],
        agreed: _Agreed,
        policy: UpdatePolicy,
        per_occurrence: bool,
        *,
        rates: Sequence[Rate] | None = None,
        step: int | None = None,
        ts: int = 0,
    ) -> Applied:
        """Waits for the gradients of rows that this rank owns, and makes their optimizer steps."""
        done = list[Applied]()
        with self._one_call_of_all_ranks(agreed.uses, ts):
            for one in self._arrived(pushes, agreed):
                done.append(
                    self.local.apply_gradients(
                        one.at,
                        one.grads,
                        rates=rates,
                        step=step,
                        ts=ts,
                        counts=one.counts,
                        per_occurrence=per_occurrence,
                        policy=policy,
                    )
                )
        return parts.total(done)

    def _push(self, agreed: _Agreed, merging: GradientMerging) -> list[GradientPush]:
        """Starts to send the sums of each lookup to the owners of its keys."""
        pushes = list[GradientPush]()
        for one in agreed.sums:
            seen = one.packed.occurrences(one.counts)
            going = self.updates, one.sent.at, self.dims, one.sums, seen, merging
            pushes.append(GradientPush.start(*going))
        return pushes

    def _arrived(
        self, pushes: Sequence[GradientPush], agreed: _Agreed
    ) -> Iterator[SummedGradients]:
        """Yields the gradients that arrive for each step, with the places of their rows."""
        came = [list(push.arrived()) for push in pushes]
        for of_step in zip(*came, strict=True):
            given = list[SummedGradients]()
            for push, own, (keys, grads, counts) in zip(pushes, agreed.sums, of_step, strict=True):
                found = self._found(own.sent) if push.merging.across_ranks else None
                given.append(SummedGradients(found or keys, grads, counts, self.dims))
            one = joined(given)
            yield one if agreed.whole else one.of_given_keys()

    def _found(self, sent: _Sent) -> Lookup | None:
        """Returns where the rows of all ranks' keys are, if a lookup found them; else None."""
        if sent.found is None and sent.cells is not None and self._cells is not None:
            slots, epoch = self._cells.rows_of(sent.cells)
            keys, slots = sent.at.merged_keys(), by_table(slots, sent.at.received)
            sent.found = Lookup(keys, self._empty(torch.float32), self.dims, slots, epoch)
        return sent.found

    def _empty(self, dtype: torch.dtype) -> Tensor:
        return torch.empty(0, dtype=dtype, device=self.device)

    def assign(
        self, keys: TableKeys | Int64[Tensor, "n"], rows: Float32[Tensor, "floats"], *, ts: int = 0
    ) -> Applied:
        """Sets rows and keeps optimizer state. Of equal keys, the last of the highest rank wins."""
        return self.local.assign(*self._sent(keys, rows), ts=ts)

    def assign_add(
        self, keys: TableKeys | Int64[Tensor, "n"], rows: Float32[Tensor, "floats"], *, ts: int = 0
    ) -> Applied:
        """Adds the rows that all ranks give. An absent row starts from its first value."""
        return self.local.assign_add(*self._sent(keys, rows), ts=ts)

    def reinitialize(self, keys: TableKeys | Int64[Tensor, "n"]) -> Int8[Tensor, "n"]:
        """Gives rows their first values; 0 = was absent, 1 = was there. Equal keys go in order."""
        return self._answers(self.updates, keys, self.local.reinitialize).to(torch.int8)

    def erase(self, keys: TableKeys | Int64[Tensor, "n"]) -> Bool[Tensor, "n"]:
        """Removes rows and returns which of them existed."""
        return self._answers(self.updates, keys, self.local.erase).bool()

    # ---- helpers

    def _floats(self, keys: TableKeys) -> int:
        """Returns the number of floats in the rows of these keys."""
        return parts.float_offsets(keys.splits, self.dims)[-1]

    def _flat(self, name: str, rows: Tensor, keys: TableKeys) -> Float32[Tensor, "floats"]:
        if len(self.names) == 1:  # like any store of one table, it takes flat or [n, dim]
            n, dim = len(keys.ids), self.dims[0]
            return arguments.rows_of_batch(name, rows, n, dim, self.device).view(-1)
        return parts.flat_rows(name, rows, self._floats(keys), self.device)

    def _whole(self, exchange: Exchange, keys: TableKeys | Tensor) -> tuple[RoutedKeys, Delivery]:
        """Sends keys with their duplicates to their owners."""
        keys = as_keys(keys, len(self.names), self.device)
        packed = self._by_owner.pack(keys, dedup=False)
        return packed, deliver(exchange, packed.ids, packed.slot_sizes)

    def _sent(
        self, keys: TableKeys | Tensor, rows: Tensor
    ) -> tuple[TableKeys, Float32[Tensor, "floats"]]:
        """Returns the keys and rows from all ranks that this rank owns, with duplicates."""
        keys = as_keys(keys, len(self.names), self.device)
        flat = self._flat("rows", rows, keys)
        packed, at = self._whole(self.updates, keys)
        leaving, coming = floats_of(at.sent, self.dims), floats_of(at.received, self.dims)
        arrived = self.updates.floats(packed.in_order(flat), leaving, coming, exact=True)
        return at.merged_keys(), by_table(arrived, at.received, self.dims)

    def _answers(
        self, exchange: Exchange, keys: TableKeys | Tensor, verb: Callable[[TableKeys], Tensor]
    ) -> Int64[Tensor, "n"]:
        """Returns the owners' answer for each key."""
        packed, at = self._whole(exchange, keys)
        answers = by_rank(verb(at.merged_keys()).to(torch.int64), at.received)
        back = exchange.ids(answers, totals(at.received), totals(at.sent))
        return back[packed.places]


def _each_key_once(
    at: TableKeys | Lookup | Tensor, flat: Tensor, counts: Tensor | None, dims: tuple[int, ...]
) -> tuple[Lookup | TableKeys, Tensor, Tensor]:
    """Returns keys, gradients and counts, added up over equal keys of all lookups."""
    assert isinstance(at, Lookup)  # joined from several lookups
    one = summed(at, flat, counts, dims)
    return one.at, one.grads, one.counts


def _occurrences(keys: TableKeys, counts: Int64[Tensor, "n"] | None) -> list[int]:
    """Returns how many occurrences the keys of each table stand for."""
    cuts = list(pairwise(keys.splits))
    if counts is None:
        return [stop - start for start, stop in cuts]
    return [int(counts[start:stop].sum()) for start, stop in cuts]


def _nothing_applied(**how: object) -> Applied:
    """Makes no step: no rank has gradients."""
    del how
    return Applied.of()
