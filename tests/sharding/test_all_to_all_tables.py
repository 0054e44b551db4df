"""Tables spread over ranks do what one process does, whatever the ranks and options."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.core.errors import ConfigError, HedgerowError, InputError
from hedgerow.routing.router import Router
from hedgerow.sharding.all_to_all_tables import AllToAllTables
from hedgerow.sharding.exchange import Exchange
from hedgerow.tables.initializers import Constant
from hedgerow.tables.multi.host_tables import HostTables
from hedgerow.tables.optimizers import Adagrad, Sgd
from hedgerow.tables.store import TableKeys
from tests.support import EXTREME_IDS

from .worlds import Batch, configs, contents, dyadic, joined, joined_grads, keys_of, on_ranks

IDS = st.one_of(st.integers(-4, 8), st.sampled_from(EXTREME_IDS))
BATCHES = st.lists(  # of up to 4 ranks, of 2 tables; empty ones are common
    st.lists(st.lists(IDS, max_size=9), min_size=2, max_size=2), min_size=1, max_size=4
)


@settings(max_examples=40, deadline=None)
@given(
    batches=BATCHES,
    dist_type=st.sampled_from(["roundrobin", "hash_roundrobin"]),
    reduce=st.sampled_from(["sum", "mean"]),
    dedup=st.booleans(),
    merge=st.booleans(),
    by_lookup=st.booleans(),
)
def test_ranks_are_one_process(
    batches: list[Batch], dist_type: str, reduce: str, dedup: bool, merge: bool, by_lookup: bool
) -> None:
    ranks = len(batches)
    # Several steps add up without rounding if the rows start from dyadic values too.
    made = configs(init=None if merge else Constant(0.25))
    unit = 0.125 * ranks if reduce == "mean" else 0.125  # the mean of them is dyadic
    grads = [dyadic(batch, seed, unit) for seed, batch in enumerate(batches)]

    def work(tables: AllToAllTables) -> tuple[AllToAllTables, list[torch.Tensor]]:
        rank = tables.exchange.rank
        keys, seen = keys_of(batches[rank]), []
        for step in range(2):
            found = tables.lookup(keys, missing="training", step=step)
            seen.append(found.rows)
            at = found if by_lookup else keys
            tables.apply_gradients(at, grads[rank], step=step, ts=step + 5)
        return tables, [*seen, tables.lookup(keys).rows]

    done = on_ranks(
        *(ranks, work, made, dist_type), reduce=reduce, dedup=dedup, merge_across_ranks=merge
    )
    alone = HostTables(made)
    everyone = joined(batches)
    total = joined_grads(batches, grads) / (ranks if reduce == "mean" else 1)
    for step in range(2):
        for rank, batch in enumerate(batches):
            rows = alone.lookup(keys_of(batch), missing="training", step=step).rows
            assert torch.equal(done[rank][1][step], rows)
        alone.apply_gradients(keys_of(everyone), total, step=step, ts=step + 5)
    for rank, batch in enumerate(batches):
        assert torch.equal(done[rank][1][2], alone.lookup(keys_of(batch)).rows)
    assert contents([tables for tables, _ in done]) == contents([alone])
    assert sum(tables.size() for tables, _ in done) == alone.size()


@pytest.mark.parametrize("merge", [True, False])
def test_ids_of_several_ranks_are_one_step_or_one_a_rank(merge: bool) -> None:
    made = configs(1, optimizer=Adagrad(lr=1.0))
    grads = [torch.tensor([[1.0, 2.0, -1.0]]), torch.tensor([[0.5, 0.5, 0.5]]), torch.ones(1, 3)]

    def work(tables: AllToAllTables) -> torch.Tensor:
        tables.apply_gradients(torch.tensor([7]), grads[tables.exchange.rank])
        return tables.lookup(torch.tensor([7])).rows

    done = on_ranks(3, work, made, reduce="sum", merge_across_ranks=merge)
    alone = HostTables(made)
    for grad in [sum(grads, torch.zeros(1, 3))] if merge else grads:
        alone.apply_gradients(torch.tensor([7]), grad)
    for rows in done:
        assert torch.equal(rows, alone.lookup(torch.tensor([7])).rows)


def test_gradients_of_ranks_are_added_in_the_order_of_ranks() -> None:
    made = configs(1, optimizer=Sgd(lr=1.0))
    parts = [1e8, 1.0, -1e8]  # (1e8 + 1) - 1e8 is 0 in float32; no other order gives that

    def work(tables: AllToAllTables) -> torch.Tensor:
        part = parts[tables.exchange.rank]
        tables.assign(torch.tensor([3]), torch.zeros(1, 3))
        tables.apply_gradients(torch.tensor([3]), torch.full((1, 3), part))
        return tables.lookup(torch.tensor([3])).rows

    for rows in on_ranks(3, work, made, reduce="sum"):
        assert rows.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("dedup", [True, False])
def test_every_occurrence_of_every_rank_counts_for_admission(dedup: bool) -> None:
    made = configs(1, admit=4)  # from the fourth sighting on, by the count before a call
    batches = [[5, 5, 6], [5]]  # 5 three times in all, 6 once

    def work(tables: AllToAllTables) -> list[bool]:
        ids = torch.tensor(batches[tables.exchange.rank])
        first = tables.lookup(ids, missing="training", step=0)
        assert not first.rows.any()  # not let in yet
        tables.apply_gradients(first, torch.ones(len(ids), 3))
        assert not tables.contains(torch.tensor([5, 6])).any()
        tables.apply_gradients(torch.tensor([5, 6]), torch.ones(2, 3))
        return tables.contains(torch.tensor([5, 6])).tolist()

    assert on_ranks(2, work, made, dedup=dedup) == [[True, False]] * 2


def test_counts_of_the_caller_are_added() -> None:
    made = configs(1, admit=5)

    def work(tables: AllToAllTables) -> list[bool]:
        counts = torch.tensor([2, 1])
        for _ in range(2):
            tables.apply_gradients(torch.tensor([5, 5]), torch.ones(2, 3), counts=counts)
        return tables.contains(torch.tensor([5])).tolist()

    assert on_ranks(1, work, made) == [[False]]
    assert on_ranks(2, work, made) == [[True]] * 2


def test_each_occurrence_a_step_of_its_own() -> None:
    made = configs(1, optimizer=Adagrad(lr=1.0))
    grads = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [0.5, 0.5, 0.5]])
    ids = torch.tensor([8, 8, 9])

    def work(tables: AllToAllTables) -> torch.Tensor:
        found = tables.lookup(ids)
        tables.apply_gradients(found, grads, per_occurrence=True)
        return tables.lookup(ids).rows

    alone = HostTables(made)
    for _ in range(2):
        alone.apply_gradients(ids, grads, per_occurrence=True)
    for rows in on_ranks(2, work, made, reduce="sum"):
        assert torch.equal(rows, alone.lookup(ids).rows)


@settings(max_examples=20, deadline=None)
@given(batches=BATCHES)
def test_other_writes_are_those_of_one_process(batches: list[Batch]) -> None:
    ranks, made = len(batches), configs()
    rows = [dyadic(batch, seed) for seed, batch in enumerate(batches)]
    everyone, total = keys_of(joined(batches)), joined_grads(batches, rows)

    def work(tables: AllToAllTables) -> tuple[AllToAllTables, list[list[int]]]:
        rank = tables.exchange.rank
        keys = keys_of(batches[rank])
        tables.assign(keys, rows[rank], ts=3)
        tables.assign_add(keys, rows[rank], ts=4)
        first = tables.contains(keys)
        half = keys_of([ids[::2] for ids in batches[rank]])
        erased = tables.erase(half)
        return tables, [first.tolist(), erased.tolist(), tables.reinitialize(keys).tolist()]

    done = on_ranks(ranks, work, made, wire="bf16")  # rows that are set keep all their bits
    alone = HostTables(made)
    alone.assign(everyone, total, ts=3)
    alone.assign_add(everyone, total, ts=4)
    alone.erase(keys_of(joined([[ids[::2] for ids in batch] for batch in batches])))
    statuses = alone.reinitialize(everyone)
    split = [keys_of(batch) for batch in batches]
    for k in range(2):
        mine = [done[r][1][2][split[r].splits[k] : split[r].splits[k + 1]] for r in range(ranks)]
        wanted = statuses[everyone.splits[k] : everyone.splits[k + 1]].tolist()
        assert [status for part in mine for status in part] == wanted
    for _, (first, _, _) in done:
        assert all(first)
    found = contents([tables for tables, _ in done])
    assert [set(rows) for rows in found] == [set(rows) for rows in contents([alone])]
    for ours, theirs in zip(found, contents([alone]), strict=True):
        assert {i: row[:2] for i, row in ours.items()} == {i: row[:2] for i, row in theirs.items()}


def test_ids_travel_once_and_an_update_by_lookup_sends_none() -> None:
    made = configs(1)

    def work(tables: AllToAllTables) -> tuple[dict[str, int], dict[str, int]]:
        ids = torch.tensor([1, 1, 1, 1, 2, 2])  # 1 lives on rank 1, 2 on rank 0
        found = tables.lookup(ids)
        before = tables.exchange.counters.snapshot()
        tables.apply_gradients(found, torch.ones(6, 3))
        return before, tables.exchange.counters.snapshot()

    for before, after in on_ranks(2, work, made, "roundrobin"):
        assert before["ids_sent_bytes"] == before["ids_received_bytes"] == 8
        assert before["counts_sent_bytes"] == after["counts_sent_bytes"] == 8
        assert before["floats_sent_bytes"] == 3 * 4
        assert after["floats_sent_bytes"] == 2 * 3 * 4
        assert after["ids_sent_bytes"] == 16  # the occurrences of one id


def test_a_wire_of_half_the_bytes_rounds_rows_and_gradients() -> None:
    made = configs(1, optimizer=Sgd(lr=1.0))

    def work(tables: AllToAllTables) -> tuple[list[float], int]:
        ids = torch.tensor([1, 2])
        tables.assign(ids, torch.zeros(2, 3))
        tables.apply_gradients(ids, torch.full((2, 3), 1 + 2**-10))
        return tables.lookup(ids).rows.tolist(), tables.exchange.counters.read("floats_sent_bytes")

    for rows, _ in on_ranks(2, work, made, "roundrobin", wire="bf16", reduce="sum"):
        assert rows == [-2.0] * 6
    for rows, floats in on_ranks(2, work, made, "roundrobin", wire="fp16", reduce="sum"):
        assert rows == [-2 - 2**-9] * 6
        assert floats == 3 * 4 + 3 * 2 + 3 * 2


def test_rows_travel_while_the_caller_works() -> None:
    def work(tables: AllToAllTables) -> bool:
        keys = keys_of([[1, 2, 1], [3]])
        coming = tables.start_lookup(keys, missing="initializer")
        alone = HostTables(configs()).lookup(keys, missing="initializer")
        found = coming.wait()
        tables.apply_gradients(found, torch.ones(10))
        return torch.equal(found.rows, alone.rows) and tables.contains(keys).all().item()

    assert all(on_ranks(3, work, configs()))


def test_an_output_of_the_caller() -> None:
    def work(tables: AllToAllTables) -> bool:
        keys = keys_of([[1, 2], [3]])
        out = torch.full((7,), 9.0)
        found = tables.lookup(keys, missing="initializer", out=out)
        return found.rows is out and torch.equal(out, tables.lookup(keys, missing="training").rows)

    assert all(on_ranks(2, work, configs()))


def test_alone_it_is_its_own_shard() -> None:
    made = configs()
    tables = AllToAllTables(HostTables(made), [Router("roundrobin", 1)] * 2, Exchange())
    assert tables.names == ("t0", "t1")
    assert tables.dims == (3, 1)
    assert len(tables) == tables.max_ts() == 0
    assert tables.tables == (tables.table(0), tables.table(1))
    assert "rank 0 of 1" in repr(tables)
    tables.assign(keys_of([[1], [2]]), torch.ones(4), ts=7)
    assert (tables.size(), tables.max_ts()) == (2, 7)
    with pytest.raises(InputError, match="at an owner"):
        tables.entries(torch.tensor([1]))
    with pytest.raises(InputError, match="ask one of them"):
        tables.scan()


def test_what_it_refuses() -> None:
    store = HostTables(configs())
    with pytest.raises(ConfigError, match="1 routers for 2 tables"):
        AllToAllTables(store, [Router("roundrobin", 1)], Exchange())
    with pytest.raises(ConfigError, match="has 2 shards, the exchange 1 ranks"):
        AllToAllTables(store, [Router("roundrobin", 2)] * 2, Exchange())
    with pytest.raises(ConfigError, match="reduce"):
        AllToAllTables(store, [Router("roundrobin", 1)] * 2, Exchange(), reduce="max")
    tables = AllToAllTables(store, [Router("roundrobin", 1)] * 2, Exchange())
    for call in (
        lambda: tables.lookup(torch.tensor([1])),
        lambda: tables.lookup(keys_of([[1], []]), missing="random"),  # pyright: ignore
        lambda: tables.apply_gradients(keys_of([[1], []]), torch.ones(4)),
        lambda: tables.assign(TableKeys(torch.tensor([1]), (0, 1)), torch.ones(3)),
        lambda: tables.lookup(keys_of([[1], []]), out=torch.ones(4)),
    ):
        with pytest.raises(HedgerowError):
            call()
    assert tables.exchange.counters.snapshot() == {}  # before anything travelled
