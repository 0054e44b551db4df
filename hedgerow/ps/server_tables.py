"""A RowStore whose rows are distributed over several servers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, cycle, pairwise
from operator import mul
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from ..core.counters import Timings
from ..core.errors import (
    ConfigError,
    HedgerowError,
    InputError,
    NotFiniteError,
)
from ..core.recycle import Recycler
from ..core.shapes import Bool, Float32, Int8, Int64
from ..routing.router import Router
from ..tables import arguments
from ..tables.config import TableConfig
from ..tables.local_table import MemoryUse, TableStats
from ..tables.module_store import BagsReader, DistributedStore, FeatureBags
from ..tables.multi import parts
from ..tables.multi.parts import first_not_finite, float_offsets
from ..tables.multi.routed_keys import KeyRouter, RoutedKeys
from ..tables.multi.several_tables import MultiConfig
from ..tables.optimizers import Rate, rate_at
from ..tables.store import (
    PLAIN,
    Applied,
    Entries,
    Joined,
    Lookup,
    Missing,
    SummedGradients,
    TableKeys,
    UpdatePolicy,
    as_keys,
    by_lookup,
    clipped,
    summed,
)
from .shard import PendingAnswer, Shard, ShardView

if TYPE_CHECKING:
    from ..tables.host import HostTable


@dataclass(frozen=True, slots=True, eq=False)
class ServerShare:
    """The part of a call that one server handles.

    `keys` are the keys that the server owns. `ids` and `floats` are the positions of these keys and
    of their rows among all packed keys of the call.
    """

    server: int
    keys: TableKeys
    ids: slice
    floats: slice


def shares_of(packed: RoutedKeys) -> list[ServerShare]:
    """Returns one share for each server that owns at least one of the packed keys.

    >>> from hedgerow.routing.router import Router
    >>> from hedgerow.tables.multi.routed_keys import KeyRouter
    >>> keys = TableKeys(torch.tensor([4, 3, 4, 3, 2]), (0, 3, 5))
    >>> packed = KeyRouter((1, 2), [Router("roundrobin", 2)] * 2).pack(keys)
    >>> [(s.server, s.keys.ids.tolist(), s.keys.splits, s.floats) for s in shares_of(packed)]
    [(0, [4, 2], (0, 1, 2), slice(0, 3, None)), (1, [3, 3], (0, 1, 2), slice(3, 6, None))]
    """
    found, ids_from, floats_from = list[ServerShare](), 0, 0
    for server, sizes in enumerate(packed.slot_sizes.view(-1, len(packed.dims)).tolist()):
        splits = (0, *accumulate(sizes))
        ids = slice(ids_from, ids_from + splits[-1])
        floats = slice(floats_from, floats_from + sum(map(mul, sizes, packed.dims)))
        if splits[-1]:
            found.append(ServerShare(server, TableKeys(packed.ids[ids], splits), ids, floats))
        ids_from, floats_from = ids.stop, floats.stop
    return found


def joined(packs: Sequence[RoutedKeys]) -> RoutedKeys:
    """Returns the packed keys of several lookups as one, grouped by server and table."""
    sizes = torch.stack([one.slot_sizes for one in packs]).sum(0)
    ids, first = side_by_side(packs, [one.ids for one in packs]), packs[0]
    floats = sum(one.floats for one in packs)
    return replace(first, ids=ids, slot_sizes=sizes, floats=floats, is_plain=False)


def side_by_side(
    packs: Sequence[RoutedKeys], values: Sequence[Tensor], widths: Sequence[int] = (1,)
) -> Tensor:
    """Returns the values of several lookups in the order of their joined keys.

    `widths` holds the number of values per key of each table.

    >>> from hedgerow.routing.router import Router
    >>> from hedgerow.tables.multi.routed_keys import KeyRouter
    >>> owners = KeyRouter((1,), [Router("roundrobin", 2)])
    >>> packs = [owners.pack(TableKeys.of_one(torch.tensor(ids))) for ids in ([1, 2], [2, 4, 3])]
    >>> side_by_side(packs, [one.ids for one in packs]).tolist()
    [2, 2, 4, 1, 3]
    """
    cells = [
        part.split(list(map(mul, one.slot_sizes.tolist(), cycle(widths))))
        for one, part in zip(packs, values, strict=True)
    ]
    return torch.cat([cell for of_slot in zip(*cells, strict=True) for cell in of_slot])


def finite_part(
    keys: TableKeys,
    grads: Float32[Tensor, "floats"],
    counts: Int64[Tensor, "n"],
    dims: Sequence[int],
) -> tuple[TableKeys, Tensor, Tensor, int]:
    """Removes the keys whose summed gradient is not finite.

    Returns the remaining keys, gradients and counts, and the number of dropped gradients.
    """
    if first_not_finite(grads) < 0:
        return keys, grads, counts, 0
    kept, rows, splits = [], [], [0]
    at = float_offsets(keys.splits, dims)
    for k, (start, stop) in enumerate(pairwise(keys.splits)):
        own = grads[at[k] : at[k + 1]].view(stop - start, dims[k])
        good = own.isfinite().all(1)
        kept.append(start + good.nonzero().view(-1))
        rows.append(own[good].view(-1))
        splits.append(splits[-1] + len(kept[-1]))
    chosen = torch.cat(kept)
    dropped = int(counts.sum()) - int(counts[chosen].sum())
    left = TableKeys(keys.ids[chosen], tuple(splits))
    return left, torch.cat(rows), counts[chosen], dropped


def check_finite(
    name: str, config: MultiConfig, keys: TableKeys, flat: Float32[Tensor, "floats"]
) -> None:
    """Raises `NotFiniteError` if a table that rejects non-finite values is given one.

    The check runs before any server changes a row.
    """
    if first_not_finite(flat) < 0:
        return
    at = float_offsets(keys.splits, config.dims)
    for table, (start, stop) in zip(config.configs, pairwise(at), strict=True):
        own = flat[start:stop]
        found = first_not_finite(own)
        if found >= 0 and table.not_finite == "reject":
            row, column = divmod(found, table.dim)
            raise NotFiniteError(
                f"{name} of table {table.name!r} at [{row}, {column}] is {float(own[found])}; the "
                f"table rejects what is not finite, and nothing was sent. Find its source, or make "
                f"the table with not_finite='drop'."
            )


def rates_of_keys(
    config: MultiConfig, keys: TableKeys, rates: Sequence[Rate] | None, step: int | None
) -> list[float]:
    """Returns one learning rate per segment, as a number, because servers evaluate no schedules.

    The rate of a table without keys is 0.
    """
    given = config.rates_of(rates)
    found: list[float] = []
    for table, own, (start, stop) in zip(config.configs, given, pairwise(keys.splits), strict=True):
        sources = own
        if sources is None:
            sources = [s.optimizer.rate() if s.optimizer else 0.0 for s in table.segments]
        if start == stop:
            found += [0.0] * len(sources)
            continue
        needed = any(callable(source) for source in sources) or any(
            s.optimizer and s.optimizer.follows_step for s in table.segments
        )
        at = arguments.needed_step(step, needed, table.name, "learns")
        found += [rate_at(source, at) for source in sources]
    return found


def fixed_rates(config: MultiConfig) -> tuple[float, ...] | None:
    """Returns one learning rate per segment, or None if any rate depends on the step."""
    optimizers = [segment.optimizer for table in config.configs for segment in table.segments]
    sources = [rule.rate() if rule else 0.0 for rule in optimizers]
    follow = any(rule and rule.follows_step for rule in optimizers)
    if follow or any(callable(source) for source in sources):
        return None
    return tuple(rate_at(source, 0) for source in sources)


A = TypeVar("A")
S = TypeVar("S")


@dataclass(frozen=True, slots=True, eq=False)
class Dispatch:
    """How a lookup distributed its keys to servers. An update at the same keys reuses it."""

    of: ServerTables
    packed: RoutedKeys
    shares: list[ServerShare]


@dataclass(frozen=True, slots=True, eq=False)
class _Given:
    """Gradients of some keys of one lookup, with the routing and the shares of the lookup."""

    packed: RoutedKeys
    grads: Tensor
    counts: Tensor | None
    shares: list[ServerShare]
    is_whole: bool = True  # whether every packed key has a gradient


@dataclass(frozen=True, slots=True, eq=False)
class _Leaving:
    """What one server receives in an update."""

    server: int
    keys: TableKeys
    grads: Float32[Tensor, "floats"]
    counts: Int64[Tensor, "n"]


class ServerTables(DistributedStore):
    """A RowStore whose rows are on several servers. It is as thread-safe as its shards.

    `routers` holds one router per table, which names the owner of each key; the default is
    `roundrobin`. A call sends one request to each server that owns some of its keys, and all
    requests are in flight at once. With `dedup`, each distinct id of a table travels once, with the
    sum of its gradients. The client evaluates the learning rates.

    `apply_gradients` accepts the result of a lookup in place of keys and reuses its routing. It
    takes one optimizer step per distinct id, and its result counts distinct ids. Updates of
    different workers are separate steps. A call that is rejected before it is sent changes no row.
    A call that fails at one server may have changed rows on other servers.

    `timings` has a timer "embedding_lookup" with the tags `model` and `server`. It measures the
    time from the first request of a lookup to the answer of that server.

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
        self._by_owner = KeyRouter(self.dims, self.routers)
        self._rates = fixed_rates(self.config)

    def _check(self) -> None:
        if not self.shards:
            raise ConfigError("ServerTables without a server; give at least one shard.")
        if len(self.routers) != len(self.names):
            raise ConfigError(
                f"{len(self.routers)} routers for {len(self.names)} tables; give one per table."
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
                    f"{self.names} of {self.dims} are expected; start all servers with one config."
                )

    def __repr__(self) -> str:
        return f"ServerTables({', '.join(self.names)} on {len(self.shards)} servers)"

    def table(self, k: int = 0) -> ServerTables:
        """Returns a store of table `k` alone, on the same servers."""
        name = self.names[arguments.table_number(k, len(self.names))]
        alone = {name: self.config.configs[k]}
        splits = self.config.segment_splits
        of_each = [ShardView(shard, [k], splits) for shard in self.shards]
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
        """An empty tuple, because all rows are on servers."""
        return ()

    def row_counts(self) -> dict[str, int]:
        """Returns the number of rows of each table, summed over all servers."""
        return dict(zip(self.names, self.sizes(), strict=True))

    def stats_by_table(self) -> dict[str, TableStats]:
        """Returns rows, bytes, load and counters of each table, over all servers."""
        return self.stats()

    # ---- reads

    def bags_reader(self, bags: FeatureBags) -> BagsReader | None:
        """Returns None: torch pools the rows after the servers have sent them."""
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
        """Returns the rows of `keys` as a flat tensor, in `out` if given. It inserts no row."""
        arguments.missing_rule(missing)
        keys = as_keys(keys, len(self.names))
        if out is not None and len(self.names) == 1 and out.dim() == 2:
            out = arguments.output(out, len(keys.ids), self.dims[0]).view(-1)
        packed = self._by_owner.pack(keys, dedup=self._dedup)
        floats = parts.float_offsets(keys.splits, self.dims)[-1]
        rows = self._outputs.take(floats)[0] if out is None else parts.flat_output(out, floats)
        increment_version(rows)  # so that autograd notices if it saved the old values
        answered = rows if packed.is_plain else self._outputs.take(packed.floats)[0]
        routed = Dispatch(self, packed, shares_of(packed))

        def start(share: ServerShare) -> PendingAnswer[Lookup]:
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
        """Returns whether each key has a row."""
        return self._statuses(keys, lambda shard: shard.start_contains, torch.bool, None)

    def entries(self, keys: TableKeys | Int64[Tensor, "n"]) -> Entries:
        """Returns rows with state and time, in the order of the keys.

        A store of several tables raises; call `table(k).entries(...)`.
        """
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
        if not found:  # no ids: one server returns empty entries of the right shapes
            return self.shards[0].start_entries(0, keys.ids).wait()
        return _in_order(keys.ids, packed.places, found)

    def scan(self, rows: int | None = None) -> Iterator[Entries]:
        """Yields all rows, one server after another.

        A store of several tables raises; call `table(k).scan(...)`.
        """
        self._only("scan")
        for shard in self.shards:
            yield from shard.scan(0, rows)

    def sizes(self) -> tuple[int, ...]:
        """Returns the number of rows of each table, summed over all servers."""
        waiting = [shard.start_sizes() for shard in self.shards]
        return tuple(sum(of) for of in zip(*[one.wait() for one in waiting], strict=True))

    def size(self) -> int:
        """Returns the number of rows of all tables on all servers."""
        return sum(self.sizes())

    def __len__(self) -> int:
        return self.size()

    def stats(self) -> dict[str, TableStats]:
        """Returns the statistics of each table, as in `hr.stats`, summed over all servers.

        `load_factor` is the mean over the servers, weighted by the bytes of their indexes.
        `longest_search` is the maximum over the servers.
        """
        waiting = [shard.start_stats() for shard in self.shards]
        told = zip(*[one.wait() for one in waiting], strict=True)
        return {name: _summed(of) for name, of in zip(self.names, told, strict=True)}

    def memory(self) -> MemoryUse:
        """Returns the bytes used for each purpose, by all tables on all servers."""
        told = list(self.stats().values())
        index, rows, slack = (
            sum(int(_number(one, f"{part}_bytes")) for one in told)
            for part in ("index", "row", "slack")
        )
        return MemoryUse(index, rows, slack)

    def max_ts(self) -> int:
        """Returns the largest `ts` of any write to any table."""
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
        """Applies one optimizer step per table and distinct id, using the summed gradient."""
        keys = as_keys(at.keys if isinstance(at, Lookup) else at, len(self.names))
        flat = self._flat("grads", grads, keys)
        if counts is not None:
            arguments.occurrences(counts, len(keys.ids))
        if policy.not_finite == "reject" and parts.first_not_finite(flat) >= 0:
            check_finite("grads", self.config, keys, flat)
        now = self._rates if rates is None else None
        if now is None:
            now = rates_of_keys(self.config, keys, rates, step)
        dedup = self._dedup and not per_occurrence
        if counts is not None or policy.clip is not None:
            at, flat, counts = _each_key_once(at, flat, counts, self.dims, dedup=dedup)
        sent = self._summed(at, flat, counts, dedup=dedup)
        dropped = 0

        def start(one: _Leaving) -> PendingAnswer[Applied]:
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
        """Returns the update of each server: the summed gradient and the count of each key."""
        given = list[_Given]()
        lookup = at if isinstance(at, Lookup) and dedup == self._dedup else None
        for one, own, its_counts in by_lookup(lookup, flat, counts) if lookup else ():
            routed, places = one.epoch, one.slots
            if not (isinstance(routed, Dispatch) and routed.of is self and places is not None):
                given.clear()  # the lookup was made by another store
                break
            packed, whole = routed.packed, len(places) == len(routed.packed.places)
            if places is not packed.places:
                packed = packed.part(places, one.keys.splits)
            given.append(_Given(packed, own, its_counts, routed.shares, whole))
        if not given:
            keys = as_keys(at.keys if isinstance(at, Lookup) else at, len(self.names))
            packed = self._by_owner.pack(keys, dedup=dedup)
            given = [_Given(packed, flat, counts, shares_of(packed))]
        packs, sums, seen = list[RoutedKeys](), list[Tensor](), list[Tensor]()
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
        """Returns the sum of the gradients of each key. `apply_gradients` accepts the result."""
        return replace(summed(at, grads, counts, self.dims), given=given)

    def assign(
        self, keys: TableKeys | Int64[Tensor, "n"], rows: Float32[Tensor, "floats"], *, ts: int = 0
    ) -> Applied:
        """Sets rows and keeps optimizer state. The last row of a repeated key is used."""
        return self._put(keys, rows, lambda shard: shard.start_assign, ts)

    def assign_add(
        self, keys: TableKeys | Int64[Tensor, "n"], rows: Float32[Tensor, "floats"], *, ts: int = 0
    ) -> Applied:
        """Adds to rows. An absent row starts from its first value."""
        return self._put(keys, rows, lambda shard: shard.start_assign_add, ts)

    def reinitialize(self, keys: TableKeys | Int64[Tensor, "n"]) -> Int8[Tensor, "n"]:
        """Resets rows to their first values. Returns 1 for each key that had a row, else 0."""
        return self._statuses(keys, lambda shard: shard.start_reinitialize, torch.int8, _server_of)

    def erase(self, keys: TableKeys | Int64[Tensor, "n"]) -> Bool[Tensor, "n"]:
        """Removes rows and returns whether each key had one."""
        return self._statuses(keys, lambda shard: shard.start_erase, torch.bool, _server_of)

    # ---- requests to chosen servers

    def ask(
        self,
        servers: Iterable[int],
        start: Callable[[int, Shard], PendingAnswer[A]],
        *,
        writes: bool = False,
    ) -> list[A]:
        """Returns the answers of `servers`; all requests are in flight at once.

        An error is raised after every started request has ended. If `writes` is true, its message
        lists the servers that have applied their part.
        """
        on = int if writes else None
        return [answer for _, answer in _answers(servers, lambda i: start(i, self.shards[i]), on)]

    # ---- helpers

    def _flat(self, name: str, rows: Tensor, keys: TableKeys) -> Float32[Tensor, "floats"]:
        if len(self.names) == 1:  # a store of one table accepts flat and [n, dim]
            return arguments.rows_of_batch(name, rows, len(keys.ids), self.dims[0]).view(-1)
        return parts.flat_rows(name, rows, parts.float_offsets(keys.splits, self.dims)[-1])

    def _put(
        self,
        keys: TableKeys | Tensor,
        rows: Tensor,
        verb: Callable[[Shard], Callable[..., PendingAnswer[Applied]]],
        ts: int,
    ) -> Applied:
        keys = as_keys(keys, len(self.names))
        flat = self._flat("rows", rows, keys)
        check_finite("rows", self.config, keys, flat)
        packed = self._by_owner.pack(keys, dedup=False)
        given = packed.in_order(flat)

        def start(share: ServerShare) -> PendingAnswer[Applied]:
            return verb(self.shards[share.server])(share.keys, given[share.floats], ts=ts)

        shares = shares_of(packed)
        return parts.total([answer for _, answer in _answers(shares, start, _server_of)])

    def _statuses(
        self,
        keys: TableKeys | Tensor,
        verb: Callable[[Shard], Callable[[TableKeys], PendingAnswer[Tensor]]],
        dtype: torch.dtype,
        writes_on: Callable[[ServerShare], int] | None,
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
    """Combines the statistics of one table from several servers."""
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
    """Returns a statistic as a number, and 0 if the server does not report it."""
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
    """Sums gradients and counts of keys that occur in several joined lookups.

    Anything else is returned unchanged.
    """
    if not (dedup and isinstance(at, Lookup) and isinstance(at.epoch, Joined)):
        return at, grads, counts
    one = summed(at, grads, counts, dims)
    return one.at, one.grads, one.counts


def _server_of(share: ServerShare | _Leaving) -> int:
    return share.server


def _answers(
    shares: Iterable[S],
    start: Callable[[S], PendingAnswer[A]],
    writes_on: Callable[[S], int] | None = None,
) -> Iterator[tuple[S, A]]:
    """Yields each share with its answer. All requests start before the first answer is awaited.

    The first error is raised after every started request has ended. For writes, `writes_on` returns
    the server of a share, and the error message lists the servers that have applied their part.
    """
    every = list(shares)
    waiting: list[tuple[S, PendingAnswer[A]]] = []
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
    """Adds to the error of a write which of the other servers have applied their part."""
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
    """Combines rows from several servers, in the order of `ids`."""

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
