"""What a publisher brings to replicas: changes, deletions, all rows where it must."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
import torch

import hedgerow as hr
from hedgerow.core.errors import InputError
from hedgerow.routing.router import Router
from hedgerow.serving import live_model
from hedgerow.serving.live_model import LiveModel
from hedgerow.serving.model import Model, ServingError
from hedgerow.serving.request_context import marked
from hedgerow.serving.server import PredictionServer
from hedgerow.sync import publisher as publisher_module
from hedgerow.sync import target as target_module
from hedgerow.sync.protocol import ASSIGN, PushMark
from hedgerow.sync.publisher import Publisher
from hedgerow.sync.source import HostSource
from hedgerow.tables.multi.host_tables import HostTables

from .replicas import DIMS, Served, rows_of, served, train, trainer_tables, wait_for


def test_changes_and_deletions_reach_two_replicas() -> None:
    tables = trainer_tables()
    train(tables, torch.arange(-50, 50))
    with served() as (one, first), served() as (two, second):
        with Publisher([HostSource(tables)], [first, second], every="20ms") as publisher:
            assert publisher.flush()
            assert rows_of(one.store.tables) == rows_of(two.store.tables) == rows_of(tables)
            train(tables, torch.tensor([7, -(2**63), 2**63 - 1]))
            tables[0].erase(torch.arange(0, 20))
            assert publisher.flush()
            assert rows_of(one.store.tables) == rows_of(two.store.tables) == rows_of(tables)
            status = publisher.status()
            assert all(target.live for target in status.targets)
            assert (status.pending_rows, status.dropped) == (0, 0)
        assert 0 not in rows_of(one.store.tables)["item"]


def test_a_full_sync_removes_what_the_trainer_never_had() -> None:
    tables = trainer_tables()
    train(tables, torch.arange(10))
    with served() as (one, address):
        for table in one.store.tables:
            table.assign(torch.arange(5, 9000), torch.ones(8995, table.layout.dim))
        with Publisher([HostSource(tables)], address, every="20ms") as publisher:
            assert publisher.flush()
        assert rows_of(one.store.tables) == rows_of(tables)
        assert one.followed.shards()[0].removed == 2 * (9000 - 10)


def test_a_replica_under_two_addresses_is_one() -> None:
    tables = trainer_tables()
    train(tables, torch.arange(10))
    with served() as (one, address):
        other = address.replace("127.0.0.1", "localhost")
        with Publisher([HostSource(tables)], [address, other], every="20ms") as publisher:
            for step in range(3):
                train(tables, torch.arange(step, 20))
                assert publisher.flush()
                assert rows_of(one.store.tables) == rows_of(tables)
            told = publisher.status().targets
            assert sorted(bool(target.same_as) for target in told) == [False, True]
            assert sum(stream.full_syncs for one in told for stream in one.streams) == 1


def test_the_second_address_takes_over_and_a_flush_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publisher_module, "_FORGET_S", 0.0)
    monkeypatch.setattr(target_module, "_DESCRIBE_S", 0.2)
    tables, listed = trainer_tables(), Listed()
    with (
        served() as (one, address),
        Publisher([HostSource(tables)], listed, every="20ms") as publisher,
    ):
        listed.addresses = [address]
        assert publisher.flush()
        other = address.replace("127.0.0.1", "localhost")
        listed.addresses = [address, other]
        wait_for(lambda: any(target.same_as for target in publisher.status().targets))
        assert publisher.flush()
        listed.addresses = [other]
        wait_for(lambda: [to.address for to in publisher.status().targets] == [other])
        train(tables, torch.arange(20))
        assert publisher.flush(5.0)  # less than an address that gives no sign is waited for
        assert rows_of(one.store.tables) == rows_of(tables)


def test_a_trainer_without_rows_sweeps_nothing() -> None:
    """It starts anew, or lost them: a replica that answers with old rows is better than none."""
    tables = trainer_tables()
    with served() as (one, address):
        for table in one.store.tables:
            table.assign(torch.arange(9), torch.ones(9, table.layout.dim))
        with Publisher([HostSource(tables)], address, every="20ms") as publisher:
            assert publisher.flush()
            assert one.store.size() == 18
            assert publisher.status().targets[0].streams[0].unswept
            train(tables, torch.arange(4, 12))
            assert publisher.flush()
            assert one.store.size() == 24
            assert rows_of(one.store.tables)["item"][4] == rows_of(tables)["item"][4]


def test_counters_of_replicas_that_are_gone_for_good_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publisher_module, "_FORGET_S", 0.0)
    tables, listed = trainer_tables(), Listed()
    train(tables, torch.arange(3))
    with (
        served() as (_, address),
        Publisher([HostSource(tables)], listed, every="20ms") as publisher,
    ):
        listed.addresses = [address]
        assert publisher.flush()
        assert address in publisher.metrics().decode()
        listed.addresses = []
        wait_for(lambda: address not in publisher.metrics().decode())


class Listed:
    """Addresses that a test changes."""

    def __init__(self) -> None:
        self.addresses: list[str] = []

    def current(self) -> list[str]:
        return self.addresses


def test_a_model_that_was_loaded_again_gets_all_rows_again() -> None:
    tables = trainer_tables()
    train(tables, torch.arange(100))
    with (
        served() as (one, address),
        Publisher([HostSource(tables)], address, every="20ms") as publisher,
    ):
        assert publisher.flush()
        one.load()
        assert one.store.size() == 0
        wait_for(lambda: one.store.size() == 200)
        assert publisher.flush()
        assert rows_of(one.store.tables) == rows_of(tables)


def test_a_replica_that_was_away_gets_what_it_missed() -> None:
    tables = trainer_tables()
    train(tables, torch.arange(100))
    one = Served()
    server = PredictionServer(one.registry).start()
    address = server.address
    with Publisher([HostSource(tables)], address, every="20ms", timeout_s=1.0) as publisher:
        assert publisher.flush()
        server.stop(0)
        train(tables, torch.arange(90, 110))
        tables[1].erase(torch.arange(5))
        wait_for(lambda: publisher.status().targets[0].failures > 0)
        assert publisher.status().pending_rows > 0
        assert publisher.status().oldest_s > 0
        with PredictionServer(one.registry, address):  # the same rows: no full sync is needed
            assert publisher.flush()
            assert rows_of(one.store.tables) == rows_of(tables)
            assert publisher.status().targets[0].streams[0].full_syncs == 1


def test_a_replica_that_lacks_too_much_gets_all_rows() -> None:
    tables = trainer_tables()
    train(tables, torch.arange(10))
    one = Served()
    server = PredictionServer(one.registry).start()
    address = server.address
    source = HostSource(tables)
    with Publisher([source], address, every="20ms", most_pending=50) as publisher:
        assert publisher.flush()
        server.stop(0)
        train(tables, torch.arange(200))
        wait_for(lambda: publisher.status().targets[0].failures > 0)
        with PredictionServer(one.registry, address):
            assert publisher.flush()
            assert rows_of(one.store.tables) == rows_of(tables)
            assert publisher.status().targets[0].streams[0].full_syncs > 1


def test_a_second_publisher_takes_over_and_sweeps() -> None:
    tables, others = trainer_tables(), trainer_tables()
    train(tables, torch.arange(100))
    train(others, torch.arange(50, 60), -1.0)
    with served() as (one, address):
        with Publisher([HostSource(tables)], address, every="20ms") as publisher:
            assert publisher.flush()
        with Publisher([HostSource(others)], address, every="20ms") as publisher:
            assert publisher.flush()
        assert rows_of(one.store.tables) == rows_of(others)


def test_a_publisher_needs_sources_and_a_place_for_replicas() -> None:
    with pytest.raises(InputError, match="without sources"):
        Publisher([], "127.0.0.1:1")
    with pytest.raises(InputError, match="to= and listen="):
        Publisher([HostSource(trainer_tables())])
    with pytest.raises(InputError, match="above 0"):
        Publisher([HostSource(trainer_tables())], "127.0.0.1:1", every=0)


def test_a_flush_is_enough_however_long_the_next_pass_is_away() -> None:
    tables = trainer_tables()
    train(tables, torch.arange(10))
    with (
        served() as (one, address),
        Publisher([HostSource(tables)], address, every="1h") as publisher,
    ):
        assert publisher.flush()
        train(tables, torch.arange(20))
        assert publisher.flush()
        assert rows_of(one.store.tables) == rows_of(tables)


def test_pushes_that_come_late_or_from_others_change_nothing() -> None:
    """What timed out may still arrive: newer rows must not be overwritten by it."""
    served_by = Served()
    followed, (item, _) = served_by.followed, served_by.store.tables
    routers = {name: Router("roundrobin", 1).to_dict() for name in DIMS}
    asked = {"shard": 0, "shards": 1, "routers": routers, "incarnation": followed.incarnation}
    session = str(followed.attach({**asked, "publisher": "p1"})["session"])

    def push(session: str, seq: int, value: float) -> None:
        rows = {f"{name}_value": torch.full((1, dim), value) for name, dim in DIMS.items()}
        ids = {f"{name}_id": torch.tensor([7]) for name in DIMS}
        mark = PushMark(session, seq, 0, "p1").metadata()
        with served_by.registry.find("ps_0") as model, marked(mark):
            model.signatures[ASSIGN].run(ids | rows)

    push(session, 2, 2.0)
    with pytest.raises(ServingError, match="comes after 2") as late:
        push(session, 1, 1.0)
    assert late.value.code == "OUT_OF_RANGE"
    other = str(followed.attach({**asked, "publisher": "p2"})["session"])
    with pytest.raises(ServingError, match="attach again") as gone:
        push(session, 3, 3.0)
    assert gone.value.code == "ABORTED"
    assert item.lookup(torch.tensor([7])).rows_of().tolist() == [[2.0] * DIMS["item"]]
    push(other, 1, 4.0)
    assert item.lookup(torch.tensor([7])).rows_of().tolist() == [[4.0] * DIMS["item"]]


def test_pushes_that_overtake_each_other_are_applied_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served_by = Served()
    followed, (item, _) = served_by.followed, served_by.store.tables
    routers = {name: Router("roundrobin", 1).to_dict() for name in DIMS}
    asked = {"shard": 0, "shards": 1, "routers": routers, "incarnation": followed.incarnation}
    session = str(followed.attach({**asked, "publisher": "p1"})["session"])

    def push(seq: int, after: int) -> None:
        rows = {f"{name}_value": torch.full((1, dim), float(seq)) for name, dim in DIMS.items()}
        ids = {f"{name}_id": torch.tensor([7]) for name in DIMS}
        mark = PushMark(session, seq, 0, "p1", after).metadata()
        with served_by.registry.find("ps_0") as model, marked(mark):
            model.signatures[ASSIGN].run(ids | rows)

    with ThreadPoolExecutor() as pool:
        late = pool.submit(push, 2, 1)
        assert not late.done()  # it waits for the first
        push(1, 0)
        late.result()
    assert item.lookup(torch.tensor([7])).rows_of().tolist() == [[2.0] * DIMS["item"]]
    monkeypatch.setattr(live_model, "WAIT_S", 0.05)
    with pytest.raises(ServingError, match="comes after 2") as lost:  # 3 never came
        push(4, 3)
    assert lost.value.code == "OUT_OF_RANGE"
    push(5, 0)


def test_trainer_shards_sweep_only_their_own_rows() -> None:
    routers = {name: Router("roundrobin", 2) for name in DIMS}
    halves = [trainer_tables(), trainer_tables()]
    for shard, tables in enumerate(halves):
        train(tables, torch.arange(shard, 40, 2))
    sources = [
        HostSource(tables, routers=routers, shard=shard, shards=2)
        for shard, tables in enumerate(halves)
    ]
    with served() as (one, address):
        for table in one.store.tables:
            table.assign(torch.arange(100), torch.ones(100, table.layout.dim))
        with Publisher(sources, address, every="20ms") as publisher:
            assert publisher.flush()
        both = [rows_of(tables) for tables in halves]
        assert rows_of(one.store.tables) == {name: both[0][name] | both[1][name] for name in DIMS}


def test_servers_that_share_rows_get_their_own() -> None:
    tables = trainer_tables()
    train(tables, torch.arange(100))
    routers = {name: Router("hash_roundrobin", 2) for name in DIMS}
    halves = [Served(shard, routers) for shard in range(2)]
    with ExitStack() as stack:
        servers = [stack.enter_context(PredictionServer(half.registry)) for half in halves]
        addresses = [server.address for server in servers]
        with Publisher([HostSource(tables)], addresses, every="20ms") as publisher:
            assert publisher.flush()
    parts = [rows_of(half.store.tables) for half in halves]
    assert {name: parts[0][name] | parts[1][name] for name in DIMS} == rows_of(tables)
    for shard, part in enumerate(parts):
        ids = torch.tensor(sorted(part["item"]))
        assert routers["item"].owners(ids).tolist() == [shard] * len(ids)


def test_a_model_of_others_at_the_same_address_is_left_alone() -> None:
    tables = trainer_tables()
    train(tables, torch.arange(10))
    with served() as (one, address):
        config = hr.TableConfig("other", (hr.Segment(1, compressor=hr.Fp32()),), serving=True)
        other = HostTables({"other": config})
        one.registry.add(Model("theirs", 1, {}, followed=LiveModel(other)))
        with Publisher([HostSource(tables)], address, every="20ms") as publisher:
            assert publisher.flush()
            assert rows_of(one.store.tables) == rows_of(tables)
            (target,) = publisher.status().targets
            assert [stream.model for stream in target.streams] == ["ps_0"]
        publisher = Publisher([HostSource(tables)], address, model="theirs", every="20ms").start()
        wait_for(lambda: "the trainer has" in publisher.status().targets[0].error)
        assert not publisher.stop(timeout_s=0.1)
