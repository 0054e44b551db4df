"""A shard on a server does what a shard in this process does, bit for bit."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from hedgerow.core.errors import ConfigError, InputError, NotFiniteError, StateError
from hedgerow.ps.errors import DeadlineError
from hedgerow.ps.remote_shard import RemoteShard
from hedgerow.ps.shard import LocalShard, Shard
from hedgerow.tables.multi.host_tables import HostTables
from hedgerow.tables.store import Entries, TableKeys

from .servers import server, server_thread
from .tables import counting_table, some_keys, some_rows, two_tables


@pytest.fixture(params=["thread"])
def both(request: pytest.FixtureRequest) -> Iterator[tuple[Shard, Shard]]:
    with server() if request.param == "process" else server_thread() as started:
        remote = RemoteShard(started.address, two_tables(), deadline_s=20)
        yield remote, LocalShard(HostTables(two_tables()))
        remote.close()


def same_entries(first: Entries, second: Entries) -> None:
    assert torch.equal(first.ids, second.ids)
    assert torch.equal(first.found, second.found)
    assert torch.equal(first.rows, second.rows)
    assert torch.equal(first.ts, second.ts)
    for mine, other in zip(first.states, second.states, strict=True):
        assert sorted(mine) == sorted(other)
        assert all(torch.equal(mine[name], other[name]) for name in mine)


def same(shards: tuple[Shard, Shard]) -> None:
    remote, local = shards
    assert remote.start_sizes().wait() == local.start_sizes().wait()
    assert remote.start_max_ts().wait() == local.start_max_ts().wait()
    every = torch.arange(-60, 60)
    for k in range(2):
        same_entries(remote.start_entries(k, every).wait(), local.start_entries(k, every).wait())
        there = [sorted(i for part in s.scan(k, 7) for i in part.ids.tolist()) for s in shards]
        assert there[0] == there[1]


@pytest.mark.parametrize("both", ["thread", "process"], indirect=True)
def test_every_verb_equals_a_local_shard(both: tuple[Shard, Shard]) -> None:
    remote, local = both
    assert (remote.names, remote.dims) == (local.names, local.dims)
    for seed in range(3):
        keys = some_keys(seed)
        rows = some_rows(keys, seed)
        counts = torch.arange(1, len(keys.ids) + 1)
        for shard in both:
            shard.start_apply_gradients(keys, rows, step=seed, ts=7 + seed, counts=counts).wait()
        for write in ("start_assign", "start_assign_add"):
            done = [getattr(s, write)(some_keys(seed + 9), rows, ts=20).wait() for s in both]
            assert str(done[0]) == str(done[1])
        for verb in ("start_contains", "start_erase", "start_reinitialize"):
            few = some_keys(seed + 4, items=3, users=2)
            answers = [getattr(s, verb)(few).wait() for s in both]
            assert torch.equal(answers[0], answers[1])
            assert answers[0].dtype == answers[1].dtype
        for missing in ("zeros", "initializer", "training"):
            found = [s.start_lookup(keys, missing=missing).wait() for s in both]
            assert torch.equal(found[0].rows, found[1].rows)
    same((remote, local))


def test_rates_and_occurrences_travel(both: tuple[Shard, Shard]) -> None:
    keys = some_keys(2)
    grads = some_rows(keys)
    for shard in both:
        rates = [0.25, lambda step: step / 8, 2.0]
        shard.start_apply_gradients(keys, grads, rates=rates, step=3).wait()
        shard.start_apply_gradients(keys, grads, step=4, per_occurrence=True).wait()
    same(both)


def test_no_keys_and_empty_tables(both: tuple[Shard, Shard]) -> None:
    none = TableKeys(torch.empty(0, dtype=torch.int64), (0, 0, 0))
    for shard in both:
        assert shard.start_lookup(none).wait().rows.shape == (0,)
        assert shard.start_apply_gradients(none, torch.empty(0)).wait().inserted == 0
        assert list(shard.scan(0)) == []


@pytest.mark.parametrize("verb", ["lookup", "contains", "reinitialize", "erase"])
def test_no_keys_get_the_answer_of_a_local_shard(both: tuple[Shard, Shard], verb: str) -> None:
    keys = TableKeys(torch.zeros(0, dtype=torch.int64), (0, 0, 0))
    found = [getattr(shard, f"start_{verb}")(keys).wait() for shard in both]
    rows = [one.rows if verb == "lookup" else one for one in found]
    assert rows[0].shape == rows[1].shape == (0,)
    same_entries(*(shard.start_entries(0, keys.ids).wait() for shard in both))


def test_large_answers_come_in_parts_into_the_callers_memory(both: tuple[Shard, Shard]) -> None:
    keys = some_keys(1, items=70_000, users=50_000, of=10**6)
    grads = some_rows(keys)
    for shard in both:
        shard.start_apply_gradients(keys, grads).wait()
    out = torch.full((len(grads),), 7.0)
    found = both[0].start_lookup(keys, out=out).wait()
    assert found.rows.data_ptr() == out.data_ptr()
    assert torch.equal(out, both[1].start_lookup(keys).wait().rows)


@pytest.mark.parametrize("wire", [torch.float16, torch.bfloat16])
def test_a_narrow_wire_rounds_on_the_way_only(
    both: tuple[RemoteShard, LocalShard], wire: torch.dtype
) -> None:
    wide, local = both
    narrow = RemoteShard(wide.connection.address, two_tables(), wire=wire)
    keys = some_keys(5, items=3000, users=2000, of=10**9)
    rows = some_rows(keys)
    narrow.start_assign(keys, rows).wait()
    local.start_assign(keys, rows.to(wire).float()).wait()
    assert torch.equal(wide.start_lookup(keys).wait().rows, local.start_lookup(keys).wait().rows)
    narrow.start_apply_gradients(keys, rows).wait()
    local.start_apply_gradients(keys, rows.to(wire).float()).wait()
    exact = local.start_lookup(keys).wait().rows
    assert torch.equal(wide.start_lookup(keys).wait().rows, exact)
    assert torch.equal(narrow.start_lookup(keys).wait().rows, exact.to(wire).float())
    narrow.close()


def test_errors_keep_their_kind_and_name_the_server(both: tuple[Shard, Shard]) -> None:
    keys = some_keys(3)
    bad = some_rows(keys)
    bad[4] = float("nan")
    with pytest.raises(NotFiniteError, match=r"rejects what is not finite.*tcp://"):
        both[0].start_assign(keys, bad).wait()
    with pytest.raises(InputError, match="splits"):
        both[0].start_lookup(TableKeys(keys.ids, (0, 5, 6)))
    with pytest.raises(InputError, match="missing"):
        both[0].start_lookup(keys, missing="nothing")  # pyright: ignore[reportArgumentType]
    same(both)


def test_other_tables_are_refused_by_name(both: tuple[Shard, Shard]) -> None:
    remote = both[0]
    assert isinstance(remote, RemoteShard)
    address = remote.connection.address
    with pytest.raises(ConfigError, match=r"\['item', 'user'\], and the client \['count'\]"):
        RemoteShard(address, counting_table())
    other = two_tables()
    other["user"] = other["item"]
    with pytest.raises(ConfigError, match="table 'user'"):
        RemoteShard(address, other)


def test_a_server_without_tables_says_so() -> None:
    with server_thread() as started, pytest.raises(StateError, match="no tables yet"):
        RemoteShard(started.address)


def test_many_requests_under_way_and_many_threads(both: tuple[Shard, Shard]) -> None:
    remote, local = both
    keys = [some_keys(seed) for seed in range(20)]
    for one in keys:
        remote.start_apply_gradients(one, some_rows(one)).wait()
        local.start_apply_gradients(one, some_rows(one)).wait()
    under_way = [remote.start_lookup(one) for one in keys]
    for one, answer in reversed(list(zip(keys, under_way, strict=True))):
        assert torch.equal(answer.wait().rows, local.start_lookup(one).wait().rows)
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(30):
                one = keys[(number + turn) % len(keys)]
                found = remote.start_lookup(one).wait().rows
                assert torch.equal(found, local.start_lookup(one).wait().rows)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    assert not any(thread.is_alive() for thread in threads)


def test_a_server_that_is_not_there() -> None:
    with server_thread() as started:
        address = started.address
    with pytest.raises(DeadlineError, match=r"no answer to open from tcp://.*deadline of 0.2 s"):
        RemoteShard(address, counting_table(), deadline_s=0.2)
