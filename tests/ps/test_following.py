"""Changed keys of tables on servers: every one is given, once, whatever happens on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hedgerow.core.errors import InputError, StateError
from hedgerow.ps import service
from hedgerow.ps.errors import ConsumerGoneError, DeadlineError, FrameError
from hedgerow.ps.followed_tables import RemoteTable, followed_tables
from hedgerow.ps.messages import Options, ServerRequest, Verb
from hedgerow.ps.pending_requests import WaitPolicy
from hedgerow.ps.remote_shard import RemoteShard
from hedgerow.ps.service import ChangeConsumers, TableService
from hedgerow.tables.changes import TouchedBatch
from hedgerow.tables.host import HostTable
from hedgerow.tables.store import TableKeys

from .proxy import Mischief, Proxy
from .servers import server, server_thread
from .tables import counting_table

NOTHING = torch.empty(0, dtype=torch.int64)


def keys(*ids: int) -> TableKeys:
    return TableKeys.of_one(torch.tensor(ids))


def count(shard: RemoteShard, *ids: int) -> None:
    shard.start_apply_gradients(keys(*ids), -torch.ones(len(ids))).wait()


def followed(shard: RemoteShard) -> RemoteTable:
    (table,) = followed_tables(shard).values()
    assert isinstance(table, RemoteTable)
    return table


def ids_of(taken: TouchedBatch) -> list[int]:
    return sorted(taken.ids.tolist())


def test_changed_keys_are_given_once_and_given_back_keys_again() -> None:
    with server_thread() as started:
        shard = RemoteShard(started.address, counting_table())
        table = followed(shard)
        marks, others = table.touched("one", all_changes=True), table.touched("two")
        count(shard, 1, 2, 1, -(2**63))
        assert ids_of(marks.take()) == [-(2**63), 1, 2]
        assert ids_of(marks.take()) == []
        marks.give_back(torch.tensor([2]))
        shard.start_erase(keys(1)).wait()
        assert ids_of(marks.take()) == [1, 2]
        assert ids_of(others.take()) == [-(2**63), 1, 2]  # deletions are not for everyone
        marks.give_back(TouchedBatch(NOTHING, whole_table=True, forgotten=0))
        assert marks.take().whole_table
        rows, present = table.read(torch.tensor([1, 2, 7]))
        assert (rows.tolist(), present.tolist()) == ([[0.0], [1.0], [0.0]], [False, True, False])
        assert table.lookup(torch.tensor([2])).rows.tolist() == [1.0]
        assert sorted(torch.cat(list(table.all_ids())).tolist()) == [-(2**63), 2]
        marks.close()
        marks.close()
        assert marks.take().whole_table  # opened again: it does not know what it missed
        shard.close()


def test_many_keys_come_in_parts_and_ids_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hedgerow.ps.followed_tables._TAKE_IDS", 100)
    with server_thread() as started:
        shard = RemoteShard(started.address, counting_table())
        table = followed(shard)
        marks = table.touched("one", capacity=2000)
        ids = torch.arange(1050)
        shard.start_apply_gradients(TableKeys.of_one(ids), torch.ones(1050)).wait()
        assert ids_of(marks.take()) == ids.tolist()
        slices = list(table.all_ids())
        assert len(slices) > 5
        assert sorted(torch.cat(slices).tolist()) == ids.tolist()
        monkeypatch.setattr("hedgerow.ps.followed_tables._READ_FLOATS", 100)
        rows, present = table.read(torch.cat([ids, torch.tensor([-1])]))
        assert rows[:, 0].tolist() == [-1.0] * 1050 + [0.0]
        assert present.tolist() == [True] * 1050 + [False]
        shard.start_apply_gradients(TableKeys.of_one(torch.arange(3000)), torch.ones(3000)).wait()
        assert marks.take().whole_table  # more than it has room for
        shard.close()


def test_monolith_rule_forgets_on_servers_as_well() -> None:
    with server_thread() as started:
        shard = RemoteShard(started.address, counting_table())
        marks = followed(shard).touched("one", capacity=3, overflow="forget")
        for key in range(6):
            count(shard, key)
        taken = marks.take()
        assert (ids_of(taken), taken.forgotten, taken.whole_table) == ([4, 5], 4, False)
        shard.close()


def ask(verb: Verb, *more: bytes, **order: Any) -> ServerRequest:
    from hedgerow.ps.messages import text_of

    return ServerRequest(verb, options=Options(), frames=[text_of(order), *more])


OPEN = {"consumer": "c", "life": 7, "capacity": 10, "all_changes": False, "overflow": "whole_table"}


@pytest.fixture
def table() -> HostTable:
    from hedgerow.tables.multi.host_tables import HostTables

    return HostTables(counting_table()).table(0)


def taken(answer: Any) -> list[int]:
    return sorted(memoryview(answer.frames[0]).cast("q").tolist()) if answer.frames[0] else []


def test_a_take_that_comes_twice_gives_the_same_and_a_late_one_nothing(table: HostTable) -> None:
    follows = ChangeConsumers()
    follows.answer(table, ask(Verb.TOUCHED_OPEN, **OPEN))
    one = torch.ones(1, 1)
    table.apply_gradients(torch.tensor([5]), one)
    first = ask(Verb.TOUCHED_TAKE, consumer="c", life=7, number=1, most=10)
    assert taken(follows.answer(table, first)) == [5]
    table.apply_gradients(torch.tensor([6]), one)
    follows.answer(table, ask(Verb.TOUCHED_OPEN, **OPEN))  # came twice: nothing is opened anew
    assert taken(follows.answer(table, first)) == [5]
    second = ask(Verb.TOUCHED_TAKE, consumer="c", life=7, number=2, most=10)
    assert taken(follows.answer(table, second)) == [6]
    with pytest.raises(InputError, match="take 1 after take 2"):
        follows.answer(table, first)
    table.apply_gradients(torch.tensor([7]), one)
    assert taken(follows.answer(table, second)) == [6]
    third = ask(Verb.TOUCHED_TAKE, consumer="c", life=7, number=3, most=10)
    assert taken(follows.answer(table, third)) == [7]


def test_who_opens_a_consumer_anew_gets_it_and_the_other_is_told(table: HostTable) -> None:
    follows = ChangeConsumers()
    follows.answer(table, ask(Verb.TOUCHED_OPEN, **OPEN))
    follows.answer(table, ask(Verb.TOUCHED_OPEN, **{**OPEN, "life": 8}))
    with pytest.raises(ConsumerGoneError, match="'c'"):
        follows.answer(table, ask(Verb.TOUCHED_TAKE, consumer="c", life=7, number=1, most=1))
    follows.answer(table, ask(Verb.TOUCHED_CLOSE, consumer="c", life=7))  # not its own any more
    follows.answer(table, ask(Verb.TOUCHED_TAKE, consumer="c", life=8, number=1, most=1))


def test_consumers_of_a_table_are_bounded(table: HostTable) -> None:
    follows = ChangeConsumers()
    names = [f"c{i}" for i in range(service.MAX_CONSUMERS + 1)]
    for name in names[:-1]:
        follows.answer(table, ask(Verb.TOUCHED_OPEN, **{**OPEN, "consumer": name}))
    take = {"life": 7, "number": 1, "most": 1}
    follows.answer(table, ask(Verb.TOUCHED_TAKE, consumer=names[0], **take))  # c1 is silent longest
    follows.answer(table, ask(Verb.TOUCHED_OPEN, **{**OPEN, "consumer": names[-1]}))
    follows.answer(table, ask(Verb.TOUCHED_TAKE, consumer=names[0], **take))
    with pytest.raises(ConsumerGoneError):
        follows.answer(table, ask(Verb.TOUCHED_TAKE, consumer=names[1], **take))


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        ({"consumer": ""}, InputError, "consumer is ''"),
        ({"consumer": 3}, InputError, "consumer is '3'"),
        ({"consumer": "x" * 300}, InputError, "256 bytes"),
        ({"life": 0}, InputError, "life"),
        ({"life": "7"}, ValueError, "life"),
        ({"capacity": 0}, InputError, "capacity"),
        ({"capacity": 2**40}, InputError, "capacity"),
        ({"overflow": "drop"}, InputError, "overflow"),
        ({"all_changes": None}, ValueError, "all_changes"),
    ],
)
def test_hostile_orders_are_refused(
    table: HostTable, changed: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        ChangeConsumers().answer(table, ask(Verb.TOUCHED_OPEN, **{**OPEN, **changed}))


def test_orders_that_are_none_are_refused(table: HostTable) -> None:
    follows = ChangeConsumers()
    for request in (
        ServerRequest(Verb.TOUCHED_OPEN),
        ServerRequest(Verb.TOUCHED_TAKE, frames=[b"[]"]),
    ):
        with pytest.raises(FrameError):
            follows.answer(table, request)
    follows.answer(table, ask(Verb.TOUCHED_OPEN, **OPEN))
    with pytest.raises(FrameError, match="2 are expected"):
        follows.answer(table, ask(Verb.TOUCHED_BACK, consumer="c", life=7))
    with pytest.raises(FrameError, match="ids"):
        follows.answer(table, ask(Verb.TOUCHED_BACK, b"12345", consumer="c", life=7))
    with pytest.raises(StateError, match="no tables"):
        TableService().store.table(0)


def test_a_crash_with_the_log_begins_another_life_and_keeps_all_rows(tmp_path: Path) -> None:
    with server(checkpoint=tmp_path, durability="log") as started:
        shard = RemoteShard(started.address, counting_table(), deadline_s=60)
        table = followed(shard)
        marks = table.touched("one", all_changes=True)
        count(shard, 1, 2)
        assert ids_of(marks.take()) == [1, 2]
        before = marks.life
        count(shard, 3)
        started.crash()
        count(shard, 4)
        assert marks.take().whole_table
        assert marks.life != before
        assert sorted(torch.cat(list(table.all_ids())).tolist()) == [1, 2, 3, 4]
        count(shard, 5)
        assert ids_of(marks.take()) == [5]
        shard.close()


def test_ids_of_a_server_that_is_restarted_meanwhile_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else their end would look like that of all rows, and a publisher would sweep the rest."""
    monkeypatch.setattr("hedgerow.ps.followed_tables._TAKE_IDS", 100)
    with server(checkpoint=tmp_path, durability="log") as started:
        shard = RemoteShard(started.address, counting_table(), deadline_s=60)
        table = followed(shard)
        ids = torch.arange(1050)
        shard.start_apply_gradients(TableKeys.of_one(ids), torch.ones(1050)).wait()
        slices = table.all_ids()
        assert len(next(slices)) > 0
        started.crash()
        with pytest.raises(StateError, match="restarted"):
            list(slices)
        assert sorted(torch.cat(list(table.all_ids())).tolist()) == ids.tolist()
        shard.close()


def test_a_clean_restart_and_a_roll_back_are_told_to_followers_and_trainers(tmp_path: Path) -> None:
    with server(checkpoint=tmp_path) as started:
        shard = RemoteShard(started.address, counting_table(), deadline_s=60)
        marks = followed(shard).touched("one", all_changes=True)
        count(shard, 1)
        assert started.terminate() == 0
        started.restart()
        assert marks.take().whole_table  # rows are as they were, but marks are gone
        count(shard, 2)
        started.crash()
        assert marks.take().whole_table
        with pytest.raises(StateError, match="went back"):  # the follower did not take the word
            count(shard, 3)
        count(shard, 3)
        assert ids_of(marks.take()) == [3]
        shard.close()


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(s, marks=pytest.mark.long) for s in range(2, 12))]
)
def test_every_key_arrives_once_over_a_line_that_loses_doubles_and_reorders(seed: int) -> None:
    with server_thread() as started:
        trainer = RemoteShard(started.address, counting_table())
        proxy = Proxy(started.address, seed)
        follower = RemoteShard(proxy.address, counting_table(), deadline_s=30, retry_s=0.02)
        marks = RemoteTable(follower, 0).touched("one", all_changes=True)
        life, arrived, failed = marks.life, list[int](), 0
        proxy.mischief = Mischief(drop=0.2, delay=0.1, duplicate=0.2, reorder=0.1, delay_s=0.03)
        follower.connection.patience = WaitPolicy(0.05, 0.02)  # so that some takes are given up
        for key in range(80):
            count(trainer, key)
            try:
                arrived += marks.take().ids.tolist()
            except DeadlineError:
                failed += 1
        proxy.mischief = Mischief()
        follower.connection.patience = WaitPolicy(30.0, 0.1)
        for _ in range(2):  # what was given up, then what came after it
            arrived += marks.take().ids.tolist()
        assert sorted(arrived) == list(range(80))
        assert failed
        assert marks.life == life  # it was never told to begin anew
        for shard in (trainer, follower):
            shard.close()
        proxy.close()
