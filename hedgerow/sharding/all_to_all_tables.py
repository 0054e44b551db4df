"""One shard of several tables on every rank, all of them one store of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise
from typing import NoReturn, Protocol

import torch
from torch import Tensor

from ..core import checks
from ..core.errors import ConfigError, InputError, NotFiniteError
from ..core.recycle import Recycler
from ..core.shapes import Bool, Float32, Int8, Int64
from ..routing.router import Router
from ..tables import arguments
from ..tables.bags import Bags, BagsReader
from ..tables.host import HostTable
from ..tables.leave_order import one_call
from ..tables.module_store import SpreadStore
from ..tables.multi import parts
from ..tables.multi.by_owner import ByOwner, Packed
from ..tables.multi.host_cells import CellsRead, HostCells
from ..tables.policy import PLAIN, UpdatePolicy
from ..tables.schedules import Rate
from ..tables.stats import TableStats, table_stats
from ..tables.store import (
    Applied,
    Entries,
    Joined,
    Lookup,
    Missing,
    RowStore,
    TableKeys,
    as_keys,
    lookups_of,
)
from ..tables.summed import SummedGradients, summed
from .delivery import (
    Delivery,
    Merging,
    Push,
    by_rank,
    by_table,
    deliver,
    floats_of,
    totals,
)
from .exchange import Exchange, Pending


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

    @property
    def device(self) -> torch.device:
        """Where keys and rows of a call are."""
        ...

    def table(self, k: int = 0) -> HostTable:
        """Table `k` alone."""
        ...

    def cells(self, ranks: int) -> HostCells | None:
        """What reads and learns the keys that `ranks` ranks ask for; None: `lookup` does."""
        ...


# Of each rank before an update: lookup, keys, not finite, has a gradient, knows cells. Behind them
# stand the uses of each table, where a table counts them.
_WORDS = 5


class _Sent:
    """Where the keys of a lookup went, and where this rank found the rows that it owns.

    An update at the same keys sends its gradients after. `number` counts lookups, alike on all
    ranks; it is 0 where keys went for one update alone.
    """

    __slots__ = ("at", "cells", "coming", "found", "leaving", "number", "of", "packed")

    def __init__(self, of: AllToAllTables, packed: Packed, at: Delivery, number: int = 0) -> None:
        self.of, self.packed, self.at, self.number = of, packed, at, number
        # Floats of the rows that leave for each rank and come from it; gradients go the other way.
        self.leaving = floats_of(at.received, of.dims)
        self.coming = floats_of(at.sent, of.dims)
        self.cells: CellsRead | None = None
        self.found: Lookup | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Owned:
    """The token of summed gradients that have come to the owner of their rows."""

    of: AllToAllTables


@dataclass(frozen=True, slots=True, eq=False)
class _Agreed:
    """What all ranks agreed on before gradients travel, and the sums of this rank's gradients."""

    sent: tuple[_Sent, ...]  # where the keys of each lookup went; none where no rank has any
    sums: tuple[Float32[Tensor, "floats"], ...]  # of each lookup
    given: bool  # whether any rank has a gradient, be it of no row
    in_cells: bool  # whether every owner knows where the rows are
    uses: tuple[int, ...] = ()  # of each table on all ranks, where a table counts them


class PendingLookup:
    """Rows on their way. All ranks wait for theirs before they exchange anything else."""

    __slots__ = ("_coming", "_lookup", "_packed")

    def __init__(self, lookup: Lookup, packed: Packed, coming: Pending) -> None:
        self._lookup, self._packed, self._coming = lookup, packed, coming

    def wait(self) -> Lookup:
        """The rows, once they are here."""
        self._packed.unpack(self._coming.wait(), self._lookup.rows)
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
        self.names, self.dims = local.names, local.dims
        self.device = local.device
        self._lookups = 0  # so far, the same number on every rank
        self._outputs = Recycler()
        self._merging = Merging(merge_across_ranks, 1 if reduce == "sum" else exchange.ranks)
        self._check()
        self._by_owner = ByOwner(self.dims, self.routers)
        self._cells = local.cells(exchange.ranks) if merge_across_ranks else None
        self._counts_uses = any(table.order is not None for table in self.tables)
        self._rejects = [table.config.not_finite == "reject" for table in self.tables]

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
        keys = as_keys(keys, len(self.names), self.device)
        packed = self._by_owner.pack(keys, dedup=self._dedup)
        floats = self._floats(keys)
        if out is not None:
            rows = parts.flat_output(out, floats, self.device)
        elif self.device == checks.CPU:
            rows = self._outputs.take(floats)[0]
        else:  # torch keeps the memory of a device by itself
            rows = torch.empty(floats, device=self.device)
        self._lookups += 1
        at = deliver(self.exchange, packed.ids, packed.slot_sizes)
        sent = _Sent(self, packed, at, self._lookups)
        coming = self._read_own(sent, missing, step)
        return PendingLookup(Lookup(keys, rows, self.dims, epoch=sent), packed, coming)

    def _read_own(self, sent: _Sent, missing: Missing, step: int | None) -> Pending:
        """Reads the rows that ranks ask this owner for, and sends them off."""
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
        policy: UpdatePolicy = PLAIN,
    ) -> Applied:
        """The owners make one step per distinct id. Rates, step and time are the owner's own.

        Some ranks may pass keys and others a lookup: where all pass the same one, no id travels.
        """
        if isinstance(at, Lookup) and isinstance(at.epoch, _Owned) and at.epoch.of is self:
            uses = self._agree_on_own(at.keys, grads, counts, policy)
            left = replace(policy, not_finite="drop")  # all ranks have agreed on what to refuse
            with self._one_call_of_all_ranks(uses, ts):
                return self.local.apply_gradients(
                    at.keys, grads, rates=rates, step=step, ts=ts, counts=counts, policy=left
                )
        plain = rates is None and counts is None and not per_occurrence and step is not None
        agreed = self._agree(at, grads, counts, policy, dedup=not per_occurrence, plain=plain)
        return self._step(agreed, counts, policy, rates, step, ts, per_occurrence)

    def take_part(self, *, step: int, ts: int, policy: UpdatePolicy = PLAIN) -> bool:
        """Takes part in an update of other ranks without a gradient; whether any rank has one.

        The policy is for gradients of other ranks, whose rows this rank owns.
        """
        keys = TableKeys(self._empty(torch.int64), (0,) * (len(self.names) + 1))
        nothing = self._empty(torch.float32)
        agreed = self._agree(keys, nothing, None, policy, plain=True, given=False)
        self._step(agreed, None, policy, None, step, ts, False)
        return agreed.given

    def summed_gradients(
        self,
        at: TableKeys | Lookup,
        grads: Float32[Tensor, "floats"],
        *,
        counts: Int64[Tensor, "n"] | None = None,
        given: bool = True,
    ) -> SummedGradients:
        """Brings the gradients of all ranks to the owners of their rows, and adds them up there.

        An update at the result changes rows of this rank alone, and is a collective all the same.
        """
        policy = UpdatePolicy(not_finite="drop")
        agreed = self._agree(at, grads, counts, policy, given=given)
        if not agreed.sent:
            keys, sums, seen = at.keys if isinstance(at, Lookup) else at, grads[:0], None
            keys = TableKeys(keys.ids[:0], (0,) * len(keys.splits))
        else:
            merging = replace(self._merging, across_ranks=True)
            ((keys, sums, seen),) = self._push(agreed, counts, merging).arrived()
        found = summed(keys, sums, seen, self.dims)
        own = Lookup(found.keys, found.grads[:0], self.dims, epoch=_Owned(self))
        return replace(found, at=own, given=agreed.given)

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
        agreed = self._agree(at, grads, counts, PLAIN, dedup=not per_occurrence)
        if not agreed.sent:
            return _nothing_applied
        push = self._push(agreed, counts, self._merging)
        left = UpdatePolicy(not_finite="drop")
        return partial(self._apply, push, agreed, left, per_occurrence)

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
        """Sums the own gradients, and asks all ranks what they update and whether they may.

        Where the ranks update at different lookups, or at keys, the keys travel again.
        """
        keys = as_keys(at.keys if isinstance(at, Lookup) else at, len(self.names), self.device)
        flat = self._flat("grads", grads, keys)
        if counts is not None:
            arguments.occurrences(counts, len(keys.ids), self.device)
        dedup = dedup and self._dedup
        lookups = lookups_of(at) if dedup == self._dedup else ()
        sent = tuple(
            one.epoch for one in lookups if isinstance(one.epoch, _Sent) and one.epoch.of is self
        )
        known = plain and len(sent) > 0 and None not in [one.cells for one in sent]
        if len(sent) < len(lookups) or (len(sent) > 1 and not known):
            sent = ()
        shares = Joined(lookups).parts(flat) if len(sent) > 1 else [flat]
        packs = [one.packed for one in sent]
        if not sent and len(keys.ids):
            packs = [self._by_owner.pack(keys, dedup=dedup)]
        sums = tuple(map(Packed.sum_gradients, packs, shares))
        number = hash(tuple(one.number for one in sent)) % 2**62 if sent else 0
        bad = policy.rejects and not all(map(self._arrives_finite, packs, sums))
        words, uses = self._words(keys, counts, number, len(keys.ids), bad, given, known)
        keys_everywhere, same = any(words[1::_WORDS]), words[::_WORDS].count(number)
        in_cells = all(words[4::_WORDS])
        if not keys_everywhere:
            sent = ()
        elif not sent or same < self.updates.ranks or (len(sent) > 1 and not in_cells):
            packed = packs[0] if len(packs) == 1 else self._by_owner.pack(keys, dedup=dedup)
            if len(packs) != 1:  # none, or several that other ranks do not have
                sums = (packed.sum_gradients(flat),)
            sent = (_Sent(self, packed, deliver(self.updates, packed.ids, packed.slot_sizes)),)
        return _Agreed(sent, sums, any(words[3::_WORDS]), in_cells, uses)

    def _words(
        self, keys: TableKeys, counts: Tensor | None, *own: int
    ) -> tuple[list[int], tuple[int, ...]]:
        """What every rank says, one after the other, and the uses of each table on all ranks.

        Raises on all ranks what one of them may not send.
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
        """Around the part of an update that is this rank's: shards of one table count alike.

        Otherwise rows of two shards, which a load may bring together, would not compare.
        """
        calls = ExitStack()
        for table, n in zip(self.tables, uses, strict=True) if uses else ():
            if n:
                calls.enter_context(one_call(table.order, ts, n))
        return calls

    def _arrives_finite(self, packed: Packed, sums: Tensor) -> bool:
        """Whether nothing arrives that a table rejects."""
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
        """All ranks refuse what is not finite of summed gradients that came to their owners.

        Returns the uses of each table on all ranks.
        """
        bad = policy.rejects and any(self._rejects) and not bool(grads.isfinite().all())
        return self._words(keys, counts, 0, len(grads), bad, True, False)[1]

    def _step(
        self,
        agreed: _Agreed,
        counts: Tensor | None,
        policy: UpdatePolicy,
        rates: Sequence[Rate] | None,
        step: int | None,
        ts: int,
        per_occurrence: bool,
    ) -> Applied:
        """Sends gradients to the owners, which make their steps."""
        if not agreed.sent:  # on all ranks, so that no rank waits for another
            return Applied.of()
        left = replace(policy, not_finite="drop")  # all ranks have agreed on what to refuse
        cells = [one.cells for one in agreed.sent if one.cells is not None]
        if agreed.in_cells and self._cells is not None and len(cells) == len(agreed.sent):
            grads = list[Tensor]()
            for one, sums in zip(agreed.sent, agreed.sums, strict=True):
                grads.append(self.updates.start_floats(sums, one.coming, one.leaving).wait())
                if self._merging.divide_by != 1:
                    grads[-1] = grads[-1] / self._merging.divide_by
            return self._cells.learn(cells, grads, step=step or 0, ts=ts, policy=left)
        push = self._push(agreed, counts, self._merging)
        return self._apply(push, agreed, left, per_occurrence, rates=rates, step=step, ts=ts)

    def _apply(
        self,
        push: Push,
        agreed: _Agreed,
        policy: UpdatePolicy,
        per_occurrence: bool,
        *,
        rates: Sequence[Rate] | None = None,
        step: int | None = None,
        ts: int = 0,
    ) -> Applied:
        """Waits for the gradients that come to this owner, and makes their steps."""
        with self._one_call_of_all_ranks(agreed.uses, ts):
            return push.apply(
                self.local,
                rates=rates,
                step=step,
                ts=ts,
                per_occurrence=per_occurrence,
                found=agreed.sent[0].found,
                policy=policy,
            )

    def _push(self, agreed: _Agreed, counts: Tensor | None, merging: Merging) -> Push:
        (sent,), (sums,) = agreed.sent, agreed.sums
        seen = sent.packed.occurrences(counts)
        return Push.start(self.updates, sent.at, self.dims, sums, seen, merging)

    def _empty(self, dtype: torch.dtype) -> Tensor:
        return torch.empty(0, dtype=dtype, device=self.device)

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

    def _floats(self, keys: TableKeys) -> int:
        """Values of the rows of these keys."""
        return parts.float_offsets(keys.splits, self.dims)[-1]

    def _flat(self, name: str, rows: Tensor, keys: TableKeys) -> Float32[Tensor, "floats"]:
        if len(self.names) == 1:  # as every store of one table: flat or [n, dim]
            n, dim = len(keys.ids), self.dims[0]
            return arguments.rows_of_batch(name, rows, n, dim, self.device).view(-1)
        return parts.flat_rows(name, rows, self._floats(keys), self.device)

    def _whole(self, exchange: Exchange, keys: TableKeys | Tensor) -> tuple[Packed, Delivery]:
        """Keys and their duplicates, brought to their owners."""
        keys = as_keys(keys, len(self.names), self.device)
        packed = self._by_owner.pack(keys, dedup=False)
        return packed, deliver(exchange, packed.ids, packed.slot_sizes)

    def _sent(
        self, keys: TableKeys | Tensor, rows: Tensor
    ) -> tuple[TableKeys, Float32[Tensor, "floats"]]:
        """All keys and rows that this rank owns, of every rank; duplicates are kept."""
        keys = as_keys(keys, len(self.names), self.device)
        flat = self._flat("rows", rows, keys)
        packed, at = self._whole(self.updates, keys)
        leaving, coming = floats_of(at.sent, self.dims), floats_of(at.received, self.dims)
        arrived = self.updates.floats(packed.in_order(flat), leaving, coming, exact=True)
        return at.merged_keys(), by_table(arrived, at.received, self.dims)

    def _answers(
        self, exchange: Exchange, keys: TableKeys | Tensor, verb: Callable[[TableKeys], Tensor]
    ) -> Int64[Tensor, "n"]:
        """What the owners answer to each key."""
        packed, at = self._whole(exchange, keys)
        answers = by_rank(verb(at.merged_keys()).to(torch.int64), at.received)
        back = exchange.ids(answers, totals(at.received), totals(at.sent))
        return back[packed.places]


def _occurrences(keys: TableKeys, counts: Int64[Tensor, "n"] | None) -> list[int]:
    """How many occurrences the keys of each table stand for."""
    cuts = list(pairwise(keys.splits))
    if counts is None:
        return [stop - start for start, stop in cuts]
    return [int(counts[start:stop].sum()) for start, stop in cuts]


def _nothing_applied(**how: object) -> Applied:
    """The update of ranks that have no gradients."""
    del how
    return Applied.of()
