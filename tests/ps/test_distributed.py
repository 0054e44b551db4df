"""Tables on servers by slot name: paths, half precision, order of answers, deadlines, timers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import pytest
import torch

from hedgerow.core.errors import NotSupportedError
from hedgerow.core.ids import Ragged
from hedgerow.monolith import distributed_ps_factory as door
from hedgerow.monolith.tables.assemble import OverServers, assemble, local_shards
from hedgerow.monolith.tables.multi_type import MultiTypeTable, NativeMultiTable
from hedgerow.monolith.tables.on_servers import DistributedMultiTypeTable
from hedgerow.ps.errors import DeadlineError
from hedgerow.ps.messages import ServerAnswer, ServerRequest
from hedgerow.ps.remote_shard import RemoteShard, connect
from hedgerow.ps.service import TableService
from hedgerow.ps.shard import Fp16Shard, LocalShard
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.initializers import Zeros
from hedgerow.tables.optimizers import Adagrad, Sgd
from tests.ps.servers import server_thread
from tests.support import bits

CONFIGS = {
    "1": TableConfig("any", (Segment(2, Zeros(), Sgd(lr=1.0)),)),
    "2": TableConfig("any", (Segment(3, Zeros(), Adagrad(lr=0.5)),)),
}
HELD: Any = pytest.mark.parametrize("holds", [NativeMultiTable, MultiTypeTable])


@contextmanager
def remote(count: int = 2, **settings: Any) -> Iterator[list[RemoteShard]]:
    with ExitStack() as running:
        started = [running.enter_context(server_thread(name=f"{i}/{count}")) for i in range(count)]
        shards = connect([one.address for one in started], CONFIGS, **settings)
        for shard in shards:
            running.callback(shard.close)
        yield shards


def batch() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    random = torch.Generator().manual_seed(3)
    ids = {"1": torch.tensor([5, 6, 5, -1]), "2": torch.tensor([5, 5])}
    return {
        slot: (own, torch.randn(len(own), CONFIGS[slot].dim, generator=random))
        for slot, own in ids.items()
    }


@HELD
def test_it_is_the_table_of_one_process(holds: Any) -> None:
    given = batch()
    ids = {slot: own for slot, (own, _) in given.items()}
    local = holds(CONFIGS)
    with remote() as shards:
        table = DistributedMultiTypeTable(shards, CONFIGS, holds=holds)
        for one in (local, table):
            one.assign_add(given, ts=3)
            one.apply_gradients(given, rates={"2": [0.1]}, step=4)
        found, wanted = table.lookup(ids), local.lookup(ids)
        assert {s: bits(rows) for s, rows in found.items()} == {
            s: bits(rows) for s, rows in wanted.items()
        }
        assert (table.size(), table.max_ts()) == (local.size(), local.max_ts())
        assert set(table.lookup({"2": ids["2"]})) == {"2"}  # only those that were asked for
        assert table.path == ("raw" if holds is NativeMultiTable else "packed")


def test_the_specifications_numbers() -> None:
    configs = {
        "1": TableConfig("any", (Segment(1, Zeros(), Sgd(lr=1.0)),)),
        "2": TableConfig("any", (Segment(2, Zeros(), Sgd(lr=1.0)),)),
    }
    table = assemble(configs, OverServers(local_shards(2)))
    rows = {
        "1": (torch.tensor([1, 2]), torch.tensor([[-1.0], [-2.0]])),
        "2": (torch.tensor([3]), torch.tensor([[-3.0, -3.0]])),
    }
    table.assign_add(rows)
    table.apply_gradients({slot: (ids, 0.5 * own) for slot, (ids, own) in rows.items()})
    found = table.lookup({slot: ids for slot, (ids, _) in rows.items()})
    assert found["1"].tolist() == [[-0.5], [-1.0]]
    assert found["2"].tolist() == [[-1.5, -1.5]]


def test_reinitialize_answers_in_the_order_of_the_ids() -> None:
    with remote() as shards:
        table = DistributedMultiTypeTable(shards, CONFIGS)
        table.assign({"2": (torch.tensor([1, 4]), torch.ones(2, 3))})
        assert table.reinitialize("2", torch.tensor([4, 3, 2, 1])).tolist() == [1, 0, 0, 1]
        assert table.reinitialize("no", torch.tensor([4, 3])).tolist() == [-1, -1]
        assert table.lookup({"2": torch.tensor([1, 4])})["2"].tolist() == [[0.0] * 3] * 2


def test_reinitialize_needs_the_raw_path() -> None:
    shards = [LocalShard(MultiTypeTable(CONFIGS).store)]
    for settings in ({"holds": MultiTypeTable}, {"transfer_float16": True}):
        table = DistributedMultiTypeTable(shards, CONFIGS, **settings)
        assert table.path == "packed"
        with pytest.raises(NotSupportedError, match="packed path"):
            table.reinitialize("1", torch.tensor([1]))


def test_halves_travel_and_rows_stay() -> None:
    value = torch.tensor([[1.0001, 2.0]])
    ids = torch.tensor([7])
    with remote(1, wire=torch.float16) as shards:
        table = DistributedMultiTypeTable(shards, CONFIGS, transfer_float16=True)
        table.apply_gradients({"1": (ids, value)})
        table.apply_gradients({"1": (ids, torch.full((1, 2), 2.0**-14))})
        (row,) = shards[0].start_entries(0, ids).wait().rows.tolist()
        assert row == [-1.0 - 2.0**-14, -2.0 - 2.0**-14]  # float32 there
        found = table.lookup({"1": ids})["1"]
        assert torch.equal(found, found.half().float())
    local = Fp16Shard(LocalShard(MultiTypeTable(CONFIGS).store))
    twin = DistributedMultiTypeTable([local], CONFIGS, transfer_float16=True)
    twin.apply_gradients({"1": (ids, value)})
    twin.apply_gradients({"1": (ids, torch.full((1, 2), 2.0**-14))})
    assert torch.equal(twin.lookup({"1": ids})["1"], found)


def test_timers_are_tagged_with_model_and_server() -> None:
    with remote() as shards:
        table = DistributedMultiTypeTable(shards, CONFIGS, model="ranking")
        table.lookup({"1": torch.tensor([0, 1, 2])})
        table.lookup({"1": torch.tensor([0])})
        counts = {
            server: table.timings.read("embedding_lookup", model="ranking", server=server).count
            for server in "01"
        }
        assert counts == {"0": 2, "1": 1}


class Slow(TableService):
    """Answers to reads wait until they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()
        self.let_go.set()

    def read(self, request: ServerRequest) -> Iterator[ServerAnswer]:
        assert self.let_go.wait(60)
        yield from super().read(request)

    def lookup_at(self, *args: Any) -> None:
        assert self.let_go.wait(60)
        super().lookup_at(*args)


def test_serving_lookups_have_a_deadline_of_their_own() -> None:
    slow = Slow()
    ids = {"1": torch.tensor([1])}
    with server_thread(service=slow, name="0/1") as server, ExitStack() as open_shards:

        def over(configs: Any, deadline_s: float | None, half: bool) -> list[RemoteShard]:
            shards = connect([server.address], configs, deadline_s=deadline_s)
            for shard in shards:
                open_shards.callback(shard.close)
            return shards

        table: Any = assemble(CONFIGS, OverServers(over, max_rpc_deadline_millis=30))
        assert table.serving_lookup(ids)["1"].tolist() == [[0.0, 0.0]]
        slow.let_go.clear()
        with pytest.raises(DeadlineError, match=r"server 0/1 .*deadline of 0\.03 s"):
            table.serving_lookup(ids)
        threading.Timer(0.2, slow.let_go.set).start()  # longer than while serving
        assert table.lookup(ids)["1"].tolist() == [[0.0, 0.0]]  # training waits up to 60 s
        assert table.max_rpc_deadline_millis == 30


@pytest.mark.parametrize("kind", ["a table each", "one request", "partitioned"])
def test_every_factory_of_servers_passes_the_deadline_of_serving_on(kind: str) -> None:
    slow, ids = Slow(), torch.tensor([1])
    with server_thread(service=slow, name="0/1") as server, ExitStack() as open_shards:

        def over(*args: Any, **settings: Any) -> list[RemoteShard]:
            shards = connect(*args, **settings)
            for shard in shards:
                open_shards.callback(shard.close)
            return shards

        open_shards.enter_context(mock.patch("hedgerow.monolith.tables.assemble.connect", over))
        with door.cluster({"ps": [server.address]}):
            if kind == "partitioned":
                table: Any = door.create_partitioned_hash_table(
                    1, True, 20, feature_name_to_config=CONFIGS
                )
                asked: Any = ({"1": (False, Ragged.from_lists([[1]]))}, 1)
            else:
                one = kind == "one request"
                table = door.create_multi_type_hash_table(
                    1, CONFIGS, [None], reduce_network_packets=one, max_rpc_deadline_millis=20
                )
                asked = ({"1": ids},)
            table.serving_lookup(*asked)
            slow.let_go.clear()
            with pytest.raises(DeadlineError, match=r"server 0/1 .*deadline of 0\.02 s"):
                table.serving_lookup(*asked)
            slow.let_go.set()
            table.lookup(*asked)


def test_training_requests_have_one_too() -> None:
    slow = Slow()
    with server_thread(service=slow, name="0/1") as server:
        (shard,) = connect([server.address], CONFIGS, deadline_s=0.05)
        try:
            table = DistributedMultiTypeTable([shard], CONFIGS)
            slow.let_go.clear()
            with pytest.raises(DeadlineError, match=r"server 0/1 .*deadline of 0\.05 s"):
                table.lookup({"1": torch.tensor([1])})
        finally:
            slow.let_go.set()
            shard.close()
