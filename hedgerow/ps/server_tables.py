"""Tables whose rows are spread over many servers, as one store of rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from ..core.errors import (
    ConfigError,
    HedgerowError,
    InputError,
)
from ..core.recycle import Recycler
from ..core.shapes import Bool, Float32, Int8, Int64
from ..core.timings import Timings
from ..routing.router import Router
from ..tables import arguments
from ..tables.bags import Bags, BagsReader
from ..tables.config import TableConfig
from ..tables.module_store import SpreadStore
from ..tables.multi import parts
from ..tables.multi.by_owner import ByOwner, Packed
from ..tables.multi.multi_config import MultiConfig
from ..tables.policy import PLAIN, UpdatePolicy
from ..tables.schedules import Rate
from ..tables.stats import MemoryUse, TableStats
from ..tables.store import Applied, Entries, Joined, Lookup, Missing, TableKeys, as_keys
from ..tables.summed import SummedGradients, by_lookup, clipped, summed
from .shard import Pending, Shard
from .shares import Share, finite_part, joined, shares_of, side_by_side
from .some_tables import TablesOfShard
from .worker_checks import check_finite, fixed_rates, rates_now

if TYPE_CHECKING:
    from ..tables.host import HostTable

A = TypeVar("A")
S = TypeVar("S")


@dataclass(frozen=True, slots=True, eq=False)
class _Routed:
    """How the keys of a lookup were cut for their servers, for an update at the same keys."""

    of: ServerTables
    packed: Packed
    shares: list[Share]


@dataclass(frozen=True, slots=True, eq=False)
class _Given:
    """Gradients of some of the keys that were packed together, and the servers of those."""

    packed: Packed
    grads: Tensor
    counts: Tensor | None
    shares: list[Share]
    is_whole: bool = True  # whether the gradients are of all keys that were packed


@dataclass(frozen=True, slots=True, eq=False)
class _Leaving:
    """What one server gets in an update."""

    server: int
    keys: TableKeys
    grads: Float32[Tensor, "floats"]
    counts: Int64[Tensor, "n"]


class ServerTables(SpreadStore):
    """The RowStore of tables whose rows lie on several servers; as safe from many threads as these.

    `routers` name the owner of a key, one a table; by default `roundrobin`. A call sends one
    request to every server that owns some of its keys, all under way at once. Equal ids of a table
    travel once (`dedup`), with the sum of their gradients. Rates are worked out here. What an
    update tells counts distinct ids, of which each is one optimizer step; other workers' updates
    are steps of their own. An update takes the lookup in place of keys, and need not sort them
    again. A call that was refused has changed nothing; one that failed at a server may have changed
    rows of others. `timings` has a timer "embedding_lookup" for every server, with tags `model` and
    `server`: from the first request of a lookup to this server's answer.

    >>> from hedgerow.ps.shard import LocalShard
    >>> from hedgerow.tables.config import Segment
    >>> from hedgerow.tables.initializers import Zeros
    >>> from hedgerow.tables.multi.host_tables import HostTables
    >>> from hedgerow.tables.optimizers import Sgd
    >>> configs = {"item": TableConfig("any", (Segment(1, Zeros(), Sgd(lr=1.0)),))}
    >>> tables = ServerTables([LocalShard(HostTables(configs)) for _ in range(2)], configs)
    >>> ids = torch.tensor([0, 3, 0, 1])
    >>> tables.apply_gradients(ids, torch.full((4, 1), 2.0))
    Applied(inserted=3, refused=0, dropped=0)
    >>> tables.lookup(ids).rows.tolist()
    [-4.0, -2.0, -4.0, -2.0]
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        configs: Mapping[str, TableConfig] | MultiConfig,
        routers: Sequence[Router] | None = None,
        *,
        dedup: bool = True,
        timings: Timings | None = None,
        model: str = "",
    ) -> None:
        self.config = configs if isinstance(configs, MultiConfig) else MultiConfig.of(configs)
        self.shards = tuple(shards)
        plain = Router("roundrobin", max(1, len(self.shards)))
        given = (plain,) * len(self.config.names) if routers is None else routers
        self.routers = tuple(given)
        self.names, self.dims = self.config.names, self.config.dims
        self._dedup, self._model = dedup, model
        self.timings = timings or Timings()
        self._outputs = Recycler()
        self._check()
        self._by_owner = ByOwner(self.dims, self.routers)
        self._rates = fixed_rates(self.config)

    def _check(self) -> None:
        if not self.shards:
            raise ConfigError("ServerTables without a server; give at least one shard.")
        if len(self.routers) != len(self.names):
            raise ConfigError(
                f"{len(self.routers)} routers for {len(self.names)} tables; give one a table."
            )
        for name, router in zip(self.names, self.routers, strict=True):
            if router.shards != len(self.shards):
                raise ConfigError(
                    f"the router of table {name!r} has {router.shards} shards, and there are "
                    f"{len(self.shards)} servers; every server holds one shard."
                )
        for server, shard in enumerate(self.shards):
            if (tuple(shard.names), tuple(shard.dims)) != (self.names, self.dims):
                raise ConfigError(
                    f"server {server} holds tables {shard.names} of {shard.dims} columns, and "
                    f"{self.names} of {self.dims} are wanted; start all servers with one config."
                )

    def __repr__(self) -> str:
        return f"ServerTables({', '.join(self.names)} on {len(self.shards)} servers)"

    def table(self, k: int = 0) -> ServerTables:
        """Table `k` alone, on the same servers."""
        name = self.names[arguments.table_number(k, len(self.names))]
        alone = {name: self.config.configs[k]}
        splits = self.config.segment_splits
        of_each = [TablesOfShard(shard, [k], splits) for shard in self.shards]
        return ServerTables(
            of_each,
            alone,
            [self.routers[k]],
            dedup=self._dedup,
            timings=self.timings,
            model=self._model,
        )

    @property
    def tables(self) -> tuple[HostTable, ...]:
        """None: all rows are on servers."""
        return ()

    def row_counts(self) -> dict[str, int]:
        """Rows of each table on all servers."""
        return dict(zip(self.names, self.sizes(), strict=True))

    def stats_by_table(self) -> dict[str, TableStats]:
        """Rows, bytes, load and counts of each table, over all servers."""
        return self.stats()

    # ---- reads

    def bags_reader(self, bags: Bags) -> BagsReader | None:
        """None: rows come from servers, and are pooled by torch."""
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
        arguments.missing_rule(missing)
        keys = as_keys(keys, len(self.names))
        if out is not None and len(self.names) == 1 and out.dim() == 2:
            out = arguments.output(out, len(keys.ids), self.dims[0]).view(-1)
        packed = self._by_owner.pack(keys, dedup=self._dedup)
        floats = parts.float_offsets(keys.splits, self.dims)[-1]
        rows = self._outputs.take(floats)[0] if out is None else parts.flat_output(out, floats)
        increment_version(rows)  # so that autograd notices if it saved the old values
        answered = rows if packed.is_plain else self._outputs.take(packed.floats)[0]
        routed = _Routed(self, packed, shares_of(packed))

        def start(share: Share) -> Pending[Lookup]:
            shard, place = self.shards[share.server], answered[share.floats]
            return shard.start_lookup(share.keys, missing=missing, step=step, out=place)

        began = time.perf_counter()
        for share, _ in _answers(routed.shares, start):
            took, server = time.perf_counter() - began, str(share.server)
            self.timings.add("embedding_lookup", took, model=self._model, server=server)
        if answered is not rows:
            packed.unpack(answered, rows)
        return Lookup(keys, rows, self.dims, packed.places, routed)

    def contains(self, keys: TableKeys | Int64[Tensor, "n"]) -> Bool[Tensor, "n"]:
        """Whether each key has a row."""
        return self._statuses(keys, lambda shard: shard.start_contains, torch.bool, None)

    def entries(self, keys: TableKeys | Int64[Tensor, "n"]) -> Entries:
        """Whole rows, in the order of the keys; of several tables, ask `table(k)`."""
        self._only("entries")
        keys = as_keys(keys, 1)
        packed = self._by_owner.pack(keys, dedup=False)
        found = [
            answer
            for _, answer in _answers(
                shares_of(packed),
                lambda share: self.shards[share.server].start_entries(0, share.keys.ids),
            )
        ]
        if not found:  # a server knows what a row without ids looks like
            return self.shards[0].start_entries(0, keys.ids).wait()
        return _in_order(keys.ids, packed.places, found)

    def scan(self, rows: int | None = None) -> Iterator[Entries]:
        """All rows, server after server; of several tables, ask `table(k)`."""
        self._only("scan")
        for shard in self.shards:
            yield from shard.scan(0, rows)

    def sizes(self) -> tuple[int, ...]:
        """Rows of each table on all servers."""
        waiting = [shard.start_sizes() for shard in self.shards]
        return tuple(sum(of) for of in zip(*[one.wait() for one in waiting], strict=True))

    def size(self) -> int:
        """Rows of all tables on all servers."""
        return sum(self.sizes())

    def __len__(self) -> int:
        return self.size()

    def stats(self) -> dict[str, TableStats]:
        """By table what `hr.stats` tells, over all servers: rows, bytes and counts are summed.

        `load_factor` is the mean of the servers' indexes by their bytes, `longest_search` the
        worst.
        """
        waiting = [shard.start_stats() for shard in self.shards]
        told = zip(*[one.wait() for one in waiting], strict=True)
        return {name: _summed(of) for name, of in zip(self.names, told, strict=True)}

    def memory(self) -> MemoryUse:
        """Bytes by purpose, of all tables on all servers."""
        told = list(self.stats().values())
        index, rows, slack = (
            sum(int(_number(one, f"{part}_bytes")) for one in told)
            for part in ("index", "row", "slack")
        )
        return MemoryUse(index, rows, slack)

    def max_ts(self) -> int:
        """The largest `ts` that a write gave to any table."""
        waiting = [shard.start_max_ts() for shard in self.shards]
        return max(one.wait() for one in waiting)

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
        """One optimizer step per table and distinct id, with the gradients of this call summed."""
        keys = as_keys(at.keys if isinstance(at, Lookup) else at, len(self.names))
        flat = self._flat("grads", grads, keys)
        if counts is not None:
            arguments.occurrences(counts, len(keys.ids))
        if policy.not_finite == "reject" and parts.first_not_finite(flat) >= 0:
            check_finite("grads", self.config, keys, flat)
        now = self._rates if rates is None else None
        if now is None:
            now = rates_now(self.config, keys, rates, step)
        dedup = self._dedup and not per_occurrence
        if counts is not None or policy.clip is not None:
            at, flat, counts = _each_key_once(at, flat, counts, self.dims, dedup=dedup)
        sent = self._summed(at, flat, counts, dedup=dedup)
        dropped = 0

        def start(one: _Leaving) -> Pending[Applied]:
            nonlocal dropped
            own, its_sums, its_counts = one.keys, one.grads, one.counts
            if policy.clip is not None:
                its_sums = clipped(own, its_sums, self.dims, policy.clip)
            if dedup and parts.first_not_finite(its_sums) >= 0:
                left = finite_part(own, its_sums, its_counts, self.dims)
                own, its_sums, its_counts = left[:3]
                dropped += left[3]
            return self.shards[one.server].start_apply_gradients(
                own,
                its_sums,
                rates=now,
                step=step,
                ts=ts,
                counts=its_counts,
                per_occurrence=per_occurrence,
            )

        done = list[Applied]()
        for _, answer in _answers(sent, start, _server_of):
            done.append(answer)
        return parts.total([*done, Applied.of(dropped=dropped)] if dropped else done)

    def _summed(
        self,
        at: TableKeys | Lookup | Tensor,
        flat: Tensor,
        counts: Tensor | None,
        *,
        dedup: bool,
    ) -> list[_Leaving]:
        """What each server gets: sums of gradients by key, and how many each is."""
        given = list[_Given]()
        lookup = at if isinstance(at, Lookup) and dedup == self._dedup else None
        for one, own, its_counts in by_lookup(lookup, flat, counts) if lookup else ():
            routed, places = one.epoch, one.slots
            if not (isinstance(routed, _Routed) and routed.of is self and places is not None):
                given.clear()  # another store made it
                break
            packed, whole = routed.packed, len(places) == len(routed.packed.places)
            if places is not packed.places:
                packed = packed.part(places, one.keys.splits)
            given.append(_Given(packed, own, its_counts, routed.shares, whole))
        if not given:
            keys = as_keys(at.keys if isinstance(at, Lookup) else at, len(self.names))
            packed = self._by_owner.pack(keys, dedup=dedup)
            given = [_Given(packed, flat, counts, shares_of(packed))]
        packs, sums, seen = list[Packed](), list[Tensor](), list[Tensor]()
        whole = True
        for one in given:
            whole = whole and one.is_whole
            packs.append(one.packed)
            sums.append(one.grads if one.packed.is_plain else one.packed.sum_gradients(one.grads))
            seen.append(one.packed.occurrences(one.counts))
        shares = given[0].shares
        if len(given) > 1:
            shares = shares_of(joined(packs))
            sums, seen = [side_by_side(packs, sums, self.dims)], [side_by_side(packs, seen)]
        leaving = list[_Leaving]()
        for share in shares:
            own, its_sums, its_counts = share.keys, sums[0][share.floats], seen[0][share.ids]
            if not whole:
                left = SummedGradients(own, its_sums, its_counts, self.dims).of_given_keys()
                own, its_sums, its_counts = left.keys, left.grads, left.counts
            if len(own.ids):
                leaving.append(_Leaving(share.server, own, its_sums, its_counts))
        return leaving

    def summed_gradients(
        self,
        at: TableKeys | Lookup,
        grads: Float32[Tensor, "floats"],
        *,
        counts: Int64[Tensor, "n"] | None = None,
        given: bool = True,
    ) -> SummedGradients:
        """The sum of the gradients of each key, for an update at the result."""
        return replace(summed(at, grads, counts, self.dims), given=given)

    def assign(
        self, keys: TableKeys | Int64[Tensor, "n"], rows: Float32[Tensor, "floats"], *, ts: int = 0
    ) -> Applied:
        """Sets rows and keeps optimizer state. The last of equals wins."""
        return self._put(keys, rows, lambda shard: shard.start_assign, ts)

    def assign_add(
        self, keys: TableKeys | Int64[Tensor, "n"], rows: Float32[Tensor, "floats"], *, ts: int = 0
    ) -> Applied:
        """Adds to rows; an absent one starts from its first value."""
        return self._put(keys, rows, lambda shard: shard.start_assign_add, ts)

    def reinitialize(self, keys: TableKeys | Int64[Tensor, "n"]) -> Int8[Tensor, "n"]:
        """Makes rows as new; 0 = was absent, 1 = was there, in the order of the keys."""
        return self._statuses(keys, lambda shard: shard.start_reinitialize, torch.int8, _server_of)

    def erase(self, keys: TableKeys | Int64[Tensor, "n"]) -> Bool[Tensor, "n"]:
        """Removes rows and says which were there."""
        return self._statuses(keys, lambda shard: shard.start_erase, torch.bool, _server_of)

    # ---- for those who have cut their keys themselves

    def ask(
        self,
        servers: Iterable[int],
        start: Callable[[int, Shard], Pending[A]],
        *,
        writes: bool = False,
    ) -> list[A]:
        """What some servers answer, asked all at once; raises once none is under way.

        What fails of calls that are `writes` says which servers have done their part.
        """
        on = int if writes else None
        return [answer for _, answer in _answers(servers, lambda i: start(i, self.shards[i]), on)]

    # ---- helpers

    def _flat(self, name: str, rows: Tensor, keys: TableKeys) -> Float32[Tensor, "floats"]:
        if len(self.names) == 1:  # as every store of one table: flat or [n, dim]
            return arguments.rows_of_batch(name, rows, len(keys.ids), self.dims[0]).view(-1)
        return parts.flat_rows(name, rows, parts.float_offsets(keys.splits, self.dims)[-1])

    def _put(
        self,
        keys: TableKeys | Tensor,
        rows: Tensor,
        verb: Callable[[Shard], Callable[..., Pending[Applied]]],
        ts: int,
    ) -> Applied:
        keys = as_keys(keys, len(self.names))
        flat = self._flat("rows", rows, keys)
        check_finite("rows", self.config, keys, flat)
        packed = self._by_owner.pack(keys, dedup=False)
        given = packed.in_order(flat)

        def start(share: Share) -> Pending[Applied]:
            return verb(self.shards[share.server])(share.keys, given[share.floats], ts=ts)

        shares = shares_of(packed)
        return parts.total([answer for _, answer in _answers(shares, start, _server_of)])

    def _statuses(
        self,
        keys: TableKeys | Tensor,
        verb: Callable[[Shard], Callable[[TableKeys], Pending[Tensor]]],
        dtype: torch.dtype,
        writes_on: Callable[[Share], int] | None,
    ) -> Tensor:
        packed = self._by_owner.pack(as_keys(keys, len(self.names)), dedup=False)
        found = torch.empty(len(packed.ids), dtype=dtype)
        for share, answer in _answers(
            shares_of(packed), lambda share: verb(self.shards[share.server])(share.keys), writes_on
        ):
            found[share.ids] = answer
        return found[packed.places]

    def _only(self, verb: str) -> None:
        if len(self.names) != 1:
            raise InputError(
                f"{verb} on a store of {len(self.names)} tables, whose rows differ in width; "
                f"ask one of them: store.table(k).{verb}(...)."
            )


def _summed(told: Sequence[TableStats]) -> TableStats:
    """What servers tell of one table, as if it were one."""
    found: TableStats = {}
    for name, value in told[0].items():
        if isinstance(value, str):
            found[name] = value
        elif name == "longest_search":
            found[name] = max(_number(one, name) for one in told)
        elif name == "load_factor":
            weights = [_number(one, "index_bytes") for one in told]
            filled = sum(_number(one, name) * w for one, w in zip(told, weights, strict=True))
            found[name] = filled / max(sum(weights), 1)
        else:
            found[name] = sum(_number(one, name) for one in told)
    return found


def _number(stats: TableStats, name: str) -> int | float:
    """0 for what a server does not count."""
    value = stats.get(name, 0)
    return 0 if isinstance(value, str) else value


def _each_key_once(
    at: TableKeys | Lookup | Tensor,
    grads: Tensor,
    counts: Tensor | None,
    dims: tuple[int, ...],
    *,
    dedup: bool,
) -> tuple[TableKeys | Lookup | Tensor, Tensor, Tensor | None]:
    """Keys, gradients and counts, with those of equal keys of several lookups added up."""
    if not (dedup and isinstance(at, Lookup) and isinstance(at.epoch, Joined)):
        return at, grads, counts
    one = summed(at, grads, counts, dims)
    return one.at, one.grads, one.counts


def _server_of(share: Share | _Leaving) -> int:
    return share.server


def _answers(
    shares: Iterable[S],
    start: Callable[[S], Pending[A]],
    writes_on: Callable[[S], int] | None = None,
) -> Iterator[tuple[S, A]]:
    """The answers to all shares, asked at once; one that fails is raised when none is under way.

    Of writes, `writes_on` gives the server of a share: the error says which have done their part.
    """
    every = list(shares)
    waiting: list[tuple[S, Pending[A]]] = []
    failed: BaseException | None = None
    for share in every:
        try:
            waiting.append((share, start(share)))
        except BaseException as error:
            failed = error
            break
    done: list[S] = []
    unsure: list[S] = []
    for share, pending in waiting:
        try:
            answer = pending.wait()
        except BaseException as error:
            failed = failed or error
            if getattr(error, "may_have_happened", False):
                unsure.append(share)
            continue
        done.append(share)
        if failed is None:
            yield share, answer
    if failed is not None:
        if writes_on is not None:
            _tell_who_did(failed, *([writes_on(s) for s in some] for some in (every, done, unsure)))
        raise failed


def _tell_who_did(
    failed: BaseException, every: Sequence[int], done: Sequence[int], unsure: Sequence[int]
) -> None:
    """Adds to an error of a write to several servers what became of its other parts."""
    if len(every) < 2 or not (done or unsure) or not isinstance(failed, HedgerowError):
        return
    left = [server for server in every if server not in (*done, *unsure)]
    words = ((done, "did their part"), (unsure, "may have"), (left, "did not"))
    told = [f"{', '.join(map(str, some))} {what}" for some, what in words if some]
    failed.args = (
        f"{failed} Of the servers of this call {'; '.join(told)}: do not repeat it, since a part "
        f"that was done would be done twice.",
        *failed.args[1:],
    )


def _in_order(ids: Tensor, back: Tensor, found: Sequence[Entries]) -> Entries:
    """Rows of several servers at the places of their keys."""

    def put(of_each: list[Tensor]) -> Tensor:
        return torch.cat(of_each)[back]

    states = [
        {name: put([one.states[i][name] for one in found]) for name in segment}
        for i, segment in enumerate(found[0].states)
    ]
    return Entries(
        ids,
        put([one.found for one in found]),
        put([one.rows for one in found]),
        states,
        put([one.ts for one in found]),
    )
