"""Tables whose rows are spread over many servers, as one store of rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from ..tables.multi.multi_config import MultiConfig
from ..tables.schedules import Rate
from ..tables.stats import MemoryUse, TableStats
from ..tables.store import Applied, Entries, Lookup, Missing, TableKeys, as_keys
from .routed import Routed, Share, finite_part, route
from .shard import Pending, Shard
from .some_tables import TablesOfShard
from .worker_checks import check_finite, rates_now

if TYPE_CHECKING:
    from ..tables.host import HostTable

A = TypeVar("A")
S = TypeVar("S")


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
        self.routers = (plain,) * len(self.names) if routers is None else tuple(routers)
        self._dedup, self._model = dedup, model
        self.timings = timings or Timings()
        self._outputs = Recycler()
        self._check()

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

    @property
    def names(self) -> tuple[str, ...]:
        """The tables, in order."""
        return self.config.names

    @property
    def dims(self) -> tuple[int, ...]:
        """Columns of each table, in order."""
        return self.config.dims

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
        keys = self._keys(keys)
        floats = parts.float_offsets(keys.splits, self.dims)[-1]
        if out is not None and len(self.names) == 1 and out.dim() == 2:
            out = arguments.output(out, len(keys.ids), self.dims[0]).view(-1)
        rows = self._outputs.take(floats)[0] if out is None else parts.flat_output(out, floats)
        increment_version(rows)  # so that autograd notices if it saved the old values
        routed = self._route(keys, dedup=self._dedup)

        def start(share: Share) -> Pending[Lookup]:
            place = rows if routed.is_plain else None
            shard = self.shards[share.server]
            return shard.start_lookup(share.keys, missing=missing, step=step, out=place)

        began = time.perf_counter()
        for share, answer in _answers(routed.shares, start):
            took, server = time.perf_counter() - began, str(share.server)
            self.timings.add("embedding_lookup", took, model=self._model, server=server)
            if not routed.is_plain:
                routed.fill(share, answer.rows, rows)
        return Lookup(keys, rows, self.dims, epoch=(self, routed))

    def contains(self, keys: TableKeys | Int64[Tensor, "n"]) -> Bool[Tensor, "n"]:
        """Whether each key has a row."""
        return self._statuses(keys, lambda shard: shard.start_contains, torch.bool, None)

    def entries(self, keys: TableKeys | Int64[Tensor, "n"]) -> Entries:
        """Whole rows, in the order of the keys; of several tables, ask `table(k)`."""
        self._only("entries")
        keys = self._keys(keys)
        routed = self._route(keys, dedup=False)
        found = list(
            _answers(
                routed.shares,
                lambda share: self.shards[share.server].start_entries(0, share.keys.ids),
            )
        )
        if not found:  # a server knows what a row without ids looks like
            return self.shards[0].start_entries(0, keys.ids).wait()
        places = torch.cat([share.numbers.values for share, _ in found])
        return _in_order(keys.ids, places, [answer for _, answer in found])

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
    ) -> Applied:
        """One optimizer step per table and distinct id, with the gradients of this call summed."""
        keys = self._keys(at.keys if isinstance(at, Lookup) else at)
        flat = self._flat("grads", grads, keys)
        arguments.occurrences(counts, len(keys.ids))
        check_finite("grads", self.config, keys, flat)
        now = rates_now(self.config, keys, rates, step)
        routed = self._known(at, dedup=self._dedup and not per_occurrence)
        routed = routed or self._route(keys, dedup=self._dedup and not per_occurrence)
        dropped = 0

        def start(share: Share) -> Pending[Applied]:
            nonlocal dropped
            sums, occurred = routed.rows_of(share, flat), routed.counts_of(share, counts)
            own = share.keys
            if routed.dedup:
                own, sums, occurred, left_out = finite_part(own, sums, occurred, self.dims)
                dropped += left_out
            return self.shards[share.server].start_apply_gradients(
                own,
                sums,
                rates=now,
                step=step,
                ts=ts,
                counts=occurred,
                per_occurrence=per_occurrence,
            )

        done = [answer for _, answer in _answers(routed.shares, start, _server_of)]
        return parts.total([*done, Applied.of(dropped=dropped)])

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

    def _keys(self, keys: TableKeys | Tensor) -> TableKeys:
        return as_keys(keys, len(self.names))

    def _flat(self, name: str, rows: Tensor, keys: TableKeys) -> Float32[Tensor, "floats"]:
        if len(self.names) == 1:  # as every store of one table: flat or [n, dim]
            return arguments.rows_of_batch(name, rows, len(keys.ids), self.dims[0]).view(-1)
        return parts.flat_rows(name, rows, parts.float_offsets(keys.splits, self.dims)[-1])

    def _route(self, keys: TableKeys, *, dedup: bool) -> Routed:
        return route(keys, self.dims, self.routers, dedup=dedup)

    def _known(self, at: TableKeys | Lookup | Tensor, *, dedup: bool) -> Routed | None:
        """How the keys of an own lookup were cut."""
        if not isinstance(at, Lookup) or not isinstance(at.epoch, tuple):
            return None
        maker, routed = at.epoch
        return routed if maker is self and routed.dedup == dedup else None

    def _put(
        self,
        keys: TableKeys | Tensor,
        rows: Tensor,
        verb: Callable[[Shard], Callable[..., Pending[Applied]]],
        ts: int,
    ) -> Applied:
        keys = self._keys(keys)
        flat = self._flat("rows", rows, keys)
        check_finite("rows", self.config, keys, flat)
        routed = self._route(keys, dedup=False)

        def start(share: Share) -> Pending[Applied]:
            return verb(self.shards[share.server])(share.keys, routed.rows_of(share, flat), ts=ts)

        return parts.total([answer for _, answer in _answers(routed.shares, start, _server_of)])

    def _statuses(
        self,
        keys: TableKeys | Tensor,
        verb: Callable[[Shard], Callable[[TableKeys], Pending[Tensor]]],
        dtype: torch.dtype,
        writes_on: Callable[[Share], int] | None,
    ) -> Tensor:
        keys = self._keys(keys)
        routed = self._route(keys, dedup=False)
        found = torch.empty(len(keys.ids), dtype=dtype)
        for share, answer in _answers(
            routed.shares, lambda share: verb(self.shards[share.server])(share.keys), writes_on
        ):
            found[share.numbers.values] = answer
        return found

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


def _server_of(share: Share) -> int:
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


def _in_order(ids: Tensor, places: Tensor, found: Sequence[Entries]) -> Entries:
    """Rows of several servers at the places of their keys."""
    back = torch.empty_like(places)
    back[places] = torch.arange(len(places))

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
