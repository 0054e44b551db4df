"""What goes wrong inside a publisher loses no key: odd errors, sources that hang, publishers that
were replaced and live on."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Mapping, Sequence

import pytest
import torch
from torch import Tensor

import hedgerow as hr
from hedgerow.core.errors import InputError
from hedgerow.routing.router import Router
from hedgerow.serving import live_model
from hedgerow.serving.model import ServingError
from hedgerow.sync.pending import Pass, PendingKeys
from hedgerow.sync.protocol import read_json
from hedgerow.sync.publisher import ChangePoller, Publisher
from hedgerow.sync.source import HostSource, SourceRows, TableShare
from hedgerow.sync.target import _pause_s
from hedgerow.tables.changes import TouchedBatch
from hedgerow.tables.host import HostTable

from .replicas import DIMS, Served, rows_of, served, train, trainer_tables, wait_for


class OddSource(HostSource):
    """One that fails with errors that nobody thought of, when it is told to, or hangs."""

    def __init__(
        self, tables: list[HostTable], routers: Mapping[str, Router] | None = None
    ) -> None:
        place = {} if routers is None else {"routers": routers, "shards": 2}
        super().__init__(tables, **place)  # type: ignore[arg-type]
        self.fail_read = self.fail_scan = False
        self.fail_take = 0
        self.failed = 0
        self.may_take = threading.Event()
        self.may_take.set()

    def take(self) -> Mapping[str, TouchedBatch]:
        """Hangs while it may not."""
        self.may_take.wait()
        if self.fail_take:
            self.fail_take -= 1
            self.failed += 1
            raise ConnectionError("away, say")
        return super().take()

    def message(self, shares: Sequence[TableShare]) -> None:
        """As of rows that lie elsewhere: they are read."""

    def read(self, table: str, ids: Tensor) -> SourceRows:
        """Fails once."""
        if self.fail_read:
            self.fail_read = False
            self.failed += 1
            raise RuntimeError("out of memory, say")
        return super().read(table, ids)

    def all_ids(self, table: str) -> Iterator[Tensor]:
        """Fails once, after the first slice."""
        for ids in super().all_ids(table):
            yield ids[:5]
            if self.fail_scan:
                self.fail_scan = False
                self.failed += 1
                raise RuntimeError("out of memory, say")
            yield ids[5:]


def test_keys_of_a_push_that_failed_in_an_odd_way_are_sent_again() -> None:
    tables = trainer_tables()
    train(tables, torch.arange(100))
    source = OddSource(tables)
    with served() as (one, address), Publisher([source], address, every="20ms") as publisher:
        assert publisher.flush()
        source.fail_read = True
        train(tables, torch.arange(50, 150))
        assert publisher.flush()
        assert source.failed == 1
        assert rows_of(one.store.tables) == rows_of(tables)


def test_a_scan_that_broke_off_in_an_odd_way_is_no_reason_to_sweep() -> None:
    tables = trainer_tables()
    train(tables, torch.arange(100))
    source = OddSource(tables)
    source.fail_scan = True
    with served() as (one, address):
        for table in one.store.tables:
            table.assign(torch.arange(100), torch.ones(100, table.layout.dim))
        with Publisher([source], address, every="20ms") as publisher:
            assert publisher.flush()
            assert source.failed == 1
            assert one.followed.shards()[0].removed == 0
            assert rows_of(one.store.tables) == rows_of(tables)


def test_a_source_that_hangs_holds_up_no_other() -> None:
    routers = {name: Router("roundrobin", 2) for name in DIMS}
    halves = [trainer_tables(), trainer_tables()]
    hanging = OddSource(halves[0], routers)
    other = HostSource(halves[1], routers=routers, shard=1, shards=2)
    with served() as (one, address):
        with Publisher([hanging, other], address, every="20ms") as publisher:
            assert publisher.flush()
            hanging.may_take.clear()
            train(halves[0], torch.tensor([2]))
            train(halves[1], torch.tensor([1]))
            wait_for(lambda: one.store.size() == 2)  # the odd id in both tables
            assert not publisher.flush(timeout_s=0.2)
            hanging.may_take.set()
            assert publisher.flush()
        both = [rows_of(tables) for tables in halves]
        assert rows_of(one.store.tables) == {name: both[0][name] | both[1][name] for name in DIMS}


def test_a_flush_looks_again_at_a_source_that_failed() -> None:
    tables = trainer_tables()
    source = OddSource(tables)
    with served() as (one, address), Publisher([source], address, every="1h") as publisher:
        assert publisher.flush()
        train(tables, torch.arange(5))
        source.fail_take = 2
        assert publisher.flush()
        assert source.failed == 2
        assert rows_of(one.store.tables) == rows_of(tables)


def test_a_take_that_fails_at_a_later_table_keeps_the_keys_of_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tables = trainer_tables()
    source = HostSource(tables)
    train(tables, torch.arange(3))

    def fail() -> TouchedBatch:
        raise MemoryError

    with monkeypatch.context() as broken:
        broken.setattr(source._marks["user"], "take", fail)
        with pytest.raises(MemoryError):
            source.take()
    assert {name: sorted(one.ids.tolist()) for name, one in source.take().items()} == {
        "item": [0, 1, 2],
        "user": [0, 1, 2],
    }
    source.close()


def test_a_pass_that_failed_in_part_has_its_own_number() -> None:
    """Else a flush would take what a source had of the last pass for what it has of its own."""
    found: list[tuple[int, int]] = []
    closed, open_ = HostSource(trainer_tables()), HostSource(trainer_tables())
    closed.close()
    looks = ChangePoller([closed, open_], lambda place, _, by: found.append((place, by.number)))
    assert [looks.ask(30.0), looks.ask(30.0)] == [1, 2]
    assert "closed" in looks.error
    looks.close()
    assert found == [(1, 1), (1, 2)]
    assert looks.failures == 2


def test_a_pass_is_not_complete_where_keys_were_given_up() -> None:
    pending = PendingKeys(most=1)
    pending.open()
    assert not pending.add({"item": torch.arange(2)}, Pass(1, 0.0, 1.0))
    assert pending.take().upto is None  # it overflowed: the pass is not complete at the replica
    pending.open()
    taken = pending.take().upto
    assert taken is not None
    assert taken.number == 1  # its owner sends all rows from here on


def test_of_two_publishers_the_later_one_has_its_way() -> None:
    old, new = trainer_tables(), trainer_tables()
    train(old, torch.arange(100))
    train(new, torch.arange(50, 60), -1.0)
    with served() as (one, address):
        first = Publisher([HostSource(old)], address, every="20ms")
        second = Publisher([HostSource(new)], address, every="20ms")
        with first:
            assert first.flush()
            with second:
                assert second.flush()
                train(old, torch.arange(200))
                wait_for(lambda: "started later" in first.status().targets[0].error)
                train(new, torch.arange(55, 65), -1.0)
                assert second.flush()
                assert rows_of(one.store.tables) == rows_of(new)
                assert second.status().targets[0].streams[0].full_syncs == 1
            assert not first.stop(timeout_s=0.1)


def test_an_older_publisher_comes_back_when_the_later_one_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    followed = Served().followed
    routers = {name: Router("roundrobin", 1).to_dict() for name in DIMS}
    asked = {"shard": 0, "shards": 1, "routers": routers, "incarnation": followed.incarnation}
    followed.attach({**asked, "publisher": "p2"})
    with pytest.raises(ServingError, match="started later") as refused:
        followed.attach({**asked, "publisher": "p1"})
    assert refused.value.code == "FAILED_PRECONDITION"
    monkeypatch.setattr(live_model, "SILENT_S", 0.0)
    assert followed.attach({**asked, "publisher": "p1"})["session"]


def test_a_publisher_that_could_not_be_made_leaves_nothing_behind() -> None:
    bags = hr.EmbeddingBags([hr.Table("user", 2)])
    for every in (0, float("inf"), float("nan")):
        with pytest.raises(InputError, match="above 0"):
            hr.publish(bags, to="127.0.0.1:1", every=every, dense_every="1s")
    assert not bags._forward_pre_hooks
    assert not bags.table("user").feed.consumers


class FailingList:
    """A list of replicas that cannot be told after the first time."""

    def __init__(self, address: str) -> None:
        self._address, self.asked = address, 0

    def current(self) -> list[str]:
        """Tells it once."""
        self.asked += 1
        if self.asked > 1:
            raise KeyError("gone")
        return [self._address]


def test_a_list_that_fails_keeps_the_replicas_known_so_far() -> None:
    tables = trainer_tables()
    with served() as (one, address):
        targets = FailingList(address)
        publisher = Publisher([HostSource(tables)], targets, every="20ms").start()
        wait_for(lambda: targets.asked > 2)
        train(tables, torch.arange(10))
        wait_for(lambda: one.store.size() == 20)
        with pytest.raises(KeyError):
            publisher.stop()
        assert rows_of(one.store.tables) == rows_of(tables)


def test_pauses_differ_and_draw_nothing_from_the_generator_of_the_process() -> None:
    before = random.getstate()
    pauses = {_pause_s(failures) for failures in [4] * 8}
    assert len(pauses) > 1
    assert random.getstate() == before


def test_words_that_make_no_sense_are_refused() -> None:
    followed = Served().followed
    routers = {name: Router("roundrobin", 1).to_dict() for name in DIMS}
    asked = {"publisher": "p", "shards": 1, "routers": routers, "incarnation": followed.incarnation}
    for shard in (-1, 1, float("inf"), None, "x"):
        with pytest.raises(InputError, match="attaches"):
            followed.attach({**asked, "shard": shard})
    session = followed.attach({**asked, "shard": 0})["session"]
    for lag_s in ("x", None, [], float("nan")):
        with pytest.raises(InputError, match="lag_s"):
            followed.beat({"shard": 0, "session": session, "lag_s": lag_s})
    for data in (b"[" * 60_000, b"\xff", b"7", b""):
        with pytest.raises(InputError):
            read_json(data)
