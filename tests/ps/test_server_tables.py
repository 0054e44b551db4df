"""Rows over servers: every call gives what one store of all rows gives, bit for bit."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hedgerow.core.errors import ConfigError, InputError, NotFiniteError, StateError
from hedgerow.ps.server_tables import ServerTables
from hedgerow.ps.shard import LocalShard, PendingAnswer
from hedgerow.routing.router import Router
from hedgerow.tables.admission import Count
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.initializers import Uniform, Zeros
from hedgerow.tables.multi.host_tables import HostTables
from hedgerow.tables.optimizers import Adagrad, Adam, Optimizer, Polynomial, Sgd
from hedgerow.tables.store import Applied, TableKeys
from tests.support import EXTREME_IDS, bits, everything

DIMS = (3, 1, 2)
NAMES = ("a", "b", "c")
SERVERS = (1, 2, 5)
OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": Sgd(lr=Polynomial(initial=0.5, decay_steps=4, end=0.1)),
    "adagrad": Adagrad(lr=0.1),
    "adam": Adam(lr=0.1),
}
ROUTERS = {
    "roundrobin": lambda n: Router("roundrobin", n),
    "hash_roundrobin": lambda n: Router("hash_roundrobin", n),
    "continuous": lambda n: Router("continuous", n, rows=10),
    "bounds": lambda n: Router("roundrobin", n, bounds=[0, *range(2, n + 1)]),
}
IDS = st.integers(-4, 12) | st.sampled_from(EXTREME_IDS)
BATCH = st.tuples(*[st.lists(IDS, max_size=8)] * len(DIMS))


def configs(optimizer: Optimizer, **settings: Any) -> dict[str, TableConfig]:
    return {
        name: TableConfig("any", (Segment(dim, Uniform(0.3), optimizer),), **settings)
        for name, dim in zip(NAMES, DIMS, strict=True)
    }


def over(servers: int, of: dict[str, TableConfig], rule: str = "roundrobin") -> ServerTables:
    shards = [LocalShard(HostTables(of)) for _ in range(servers)]
    return ServerTables(shards, of, [ROUTERS[rule](servers)] * len(of))


def keys_of(batch: tuple[list[int], ...]) -> TableKeys:
    splits = [0]
    for ids in batch:
        splits.append(splits[-1] + len(ids))
    return TableKeys(torch.tensor([i for ids in batch for i in ids]).long(), tuple(splits))


def floats_for(keys: TableKeys, seed: int) -> Tensor:
    sizes = [stop - start for start, stop in zip(keys.splits, keys.splits[1:], strict=False)]
    floats = sum(n * dim for n, dim in zip(sizes, DIMS, strict=True))
    values = torch.randn(floats, generator=torch.Generator().manual_seed(seed))
    values[::5] = -0.0  # a sign that a sum from 0 would lose
    return values


def all_rows(tables: ServerTables) -> list[dict[int, tuple[Any, ...]]]:
    found = []
    for k in range(len(tables.names)):
        rows: dict[int, tuple[Any, ...]] = {}
        for shard in tables.shards:
            assert isinstance(shard, LocalShard)
            own = everything(shard.store.table(k))
            assert not set(own) & set(rows), "a row is on two servers"
            rows.update(own)
        found.append(rows)
    return found


@pytest.mark.parametrize("rule", ROUTERS)
@pytest.mark.parametrize("servers", SERVERS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@settings(max_examples=15, deadline=None)
@given(batches=st.lists(BATCH, min_size=1, max_size=3), asked=BATCH)
def test_servers_are_one_store(
    optimizer: str, servers: int, rule: str, batches: list[Any], asked: Any
) -> None:
    of = configs(OPTIMIZERS[optimizer])
    one, many = HostTables(of), over(servers, of, rule)
    for step, batch in enumerate(batches):
        keys = keys_of(batch)
        wanted = one.lookup(keys, missing="initializer")
        found = many.lookup(keys, missing="initializer")
        assert bits(found.rows) == bits(wanted.rows)
        grads = floats_for(keys, step)
        again = one.apply_gradients(keys, grads, step=step, ts=step + 1)
        at = found if step % 2 else keys
        assert repr(many.apply_gradients(at, grads, step=step, ts=step + 1)) == repr(again)
        rows = floats_for(keys, step + 100)
        assert repr(many.assign_add(keys, rows, ts=7)) == repr(one.assign_add(keys, rows, ts=7))
        assert repr(many.assign(keys, -rows)) == repr(one.assign(keys, -rows))
    keys = keys_of(asked)
    for verb in ("contains", "reinitialize", "erase"):
        if verb == "reinitialize":
            assert all_rows(many) == [everything(table) for table in one.tables]
        theirs, ours = getattr(one, verb)(keys), getattr(many, verb)(keys)
        assert (ours.dtype, ours.tolist()) == (theirs.dtype, theirs.tolist()), verb
    assert (many.size(), many.max_ts()) == (one.size(), one.max_ts())
    assert many.sizes() == tuple(table.size() for table in one.tables)


@pytest.mark.parametrize("servers", SERVERS)
@settings(max_examples=20, deadline=None)
@given(batch=BATCH, asked=BATCH)
def test_one_of_the_tables(servers: int, batch: Any, asked: Any) -> None:
    of = configs(OPTIMIZERS["adam"])
    one, many = HostTables(of), over(servers, of, "hash_roundrobin")
    keys = keys_of(batch)
    for k, dim in enumerate(DIMS):
        grads = floats_for(keys, k)[: len(keys.ids_of(k)) * dim]
        grads = torch.cat([grads, torch.zeros(len(keys.ids_of(k)) * dim - len(grads))])
        for store in (one, many):
            store.table(k).apply_gradients(keys.ids_of(k), grads, ts=k)
    for k in range(len(DIMS)):
        ids = keys_of(asked).ids_of(k)
        theirs, ours = one.table(k).entries(ids), many.table(k).entries(ids)
        assert ours.ids.tolist() == theirs.ids.tolist()
        assert ours.found.tolist() == theirs.found.tolist()
        assert bits(ours.rows) == bits(theirs.rows)
        assert ours.ts.tolist() == theirs.ts.tolist()
        for mine, other in zip(ours.states, theirs.states, strict=True):
            assert {n: v.tolist() for n, v in mine.items()} == {
                n: v.tolist() for n, v in other.items()
            }
        scanned = sorted(i for part in many.table(k).scan(2) for i in part.ids.tolist())
        assert scanned == sorted(everything(one.table(k)))


def test_every_occurrence_a_step() -> None:
    of = configs(Adagrad(lr=0.1))
    one, many = HostTables(of), over(2, of)
    keys = keys_of(([1, 2, 1], [1], [3, 3]))
    grads = floats_for(keys, 3)
    for store in (one, many):
        store.apply_gradients(keys, grads, per_occurrence=True)
    assert all_rows(many) == [everything(table) for table in one.tables]


def test_occurrences_reach_the_admission_rule() -> None:
    of = configs(Sgd(lr=1.0), admit=Count(4))
    one, many = HostTables(of), over(2, of)
    keys = keys_of(([1, 1, 2], [], []))
    seen = []
    for counts in (None, torch.tensor([1, 2, 1]), None, torch.tensor([1, 1, 9]), None):
        for store in (one, many):
            store.apply_gradients(keys, torch.ones(9), counts=counts)
        seen.append(many.contains(keys).tolist())
        assert seen[-1] == one.contains(keys).tolist()
    assert seen[0] == [False] * 3
    assert seen[-1] == [True] * 3
    assert all_rows(many) == [everything(table) for table in one.tables]


class Recorder(LocalShard):
    """A shard that notes what it was asked, and can fail."""

    def __init__(self, store: HostTables, asked: list[Any], fails: bool = False) -> None:
        super().__init__(store)
        self.asked, self.fails = asked, fails

    def start_lookup(self, *args: Any, **kwargs: Any) -> Any:
        self.asked.append(args[0])
        return super().start_lookup(*args, **kwargs)

    def start_apply_gradients(self, *args: Any, **kwargs: Any) -> Any:
        self.asked.append((args[0], kwargs["rates"]))
        pending = super().start_apply_gradients(*args, **kwargs)
        return Late(pending, self.asked, self.fails)


class Late:
    def __init__(self, pending: PendingAnswer[Applied], asked: list[Any], fails: bool) -> None:
        self.pending, self.asked, self.fails = pending, asked, fails

    def wait(self) -> Applied:
        self.asked.append("waited")
        if self.fails:
            raise StateError("this server is away")
        return self.pending.wait()


def test_one_request_a_server_all_under_way_with_rates_as_numbers() -> None:
    of = configs(Sgd(lr=lambda step: 0.5 / (1 + step)))
    asked: list[Any] = []
    tables = ServerTables([Recorder(HostTables(of), asked) for _ in range(2)], of)
    keys = keys_of(([0, 1, 0, 1], [2, 3], []))
    tables.lookup(keys)
    assert [part.ids.tolist() for part in asked] == [[0, 2], [1, 3]]
    asked.clear()
    tables.apply_gradients(keys, torch.ones(14), step=1)
    assert asked[2:] == ["waited", "waited"]
    assert [rates for _, rates in asked[:2]] == [[0.25, 0.25, 0.0]] * 2
    with pytest.raises(InputError, match="pass step="):
        tables.apply_gradients(keys, torch.ones(14))


def test_all_are_waited_for_when_one_fails() -> None:
    of = configs(Sgd(lr=1.0))
    asked: list[Any] = []
    shards = [Recorder(HostTables(of), asked, fails=i == 0) for i in range(2)]
    tables = ServerTables(shards, of)
    with pytest.raises(StateError, match="away"):
        tables.apply_gradients(keys_of(([0, 1], [], [])), torch.ones(6))
    assert asked.count("waited") == 2


def test_workers_take_a_step_each() -> None:
    of = {"t": TableConfig("t", (Segment(1, Zeros(), Adagrad(lr=0.1)),))}
    shards = [LocalShard(HostTables(of)) for _ in range(2)]
    first, second = ServerTables(shards, of), ServerTables(shards, of)
    ids = torch.tensor([5])
    first.apply_gradients(ids, torch.tensor([1.0]))
    second.apply_gradients(ids, torch.tensor([2.0]))
    alone = HostTables(of)
    for grad in (1.0, 2.0):
        alone.apply_gradients(ids, torch.tensor([grad]))
    assert bits(first.lookup(ids).rows) == bits(alone.lookup(ids).rows)


def test_what_is_not_finite() -> None:
    of = configs(Sgd(lr=1.0), not_finite="drop")
    one, many = HostTables(of), over(2, of)
    keys = keys_of(([1, 2, 1], [3], [4]))
    grads = torch.ones(12)
    grads[0], grads[11] = math.inf, math.nan
    for store in (one, many):
        assert (
            repr(store.apply_gradients(keys, grads)) == "Applied(inserted=2, refused=0, dropped=3)"
        )
    assert all_rows(many) == [everything(table) for table in one.tables]
    strict = over(2, configs(Sgd(lr=1.0)))
    with pytest.raises(NotFiniteError, match=r"grads of table 'a' at \[0, 0\]"):
        strict.apply_gradients(keys, grads)
    huge = torch.full((12,), 3e38)
    for store in (HostTables(configs(Sgd(lr=1.0))), strict):  # their sum is not finite
        told = store.apply_gradients(keys, huge)
        assert (told.inserted, told.dropped) == (3, 2)
    with pytest.raises(NotFiniteError, match="rows of table 'c'"):
        strict.assign(keys, torch.cat([torch.ones(11), torch.tensor([math.nan])]))


def test_into_the_callers_memory() -> None:
    of = configs(Sgd(lr=1.0))
    for servers in SERVERS:
        many = over(servers, of)
        keys = keys_of(([1, 2, 1], [3], []))
        rows = floats_for(keys, 1)
        many.assign(keys, rows)
        out = torch.empty(10)
        assert many.lookup(keys, out=out).rows is out
        assert bits(out[3:]) == bits(torch.cat([rows[3:9], rows[9:]]))


def test_what_cannot_be() -> None:
    of = configs(Sgd(lr=1.0))
    with pytest.raises(ConfigError, match="without a server"):
        ServerTables([], of)
    with pytest.raises(ConfigError, match="1 routers for 3 tables"):
        ServerTables([LocalShard(HostTables(of))], of, [Router("roundrobin", 1)])
    with pytest.raises(ConfigError, match="2 shards, and there are 1 servers"):
        ServerTables([LocalShard(HostTables(of))], of, [Router("roundrobin", 2)] * 3)
    with pytest.raises(ConfigError, match="server 0 holds tables"):
        ServerTables([LocalShard(HostTables({"a": of["a"]}))], of)
    with pytest.raises(InputError, match="ask one of them"):
        over(2, of).entries(keys_of(([1], [], [])))
