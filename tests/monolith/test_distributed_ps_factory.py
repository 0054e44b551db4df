"""The factories under Monolith's names: arguments, lists, queues, and that tables learn."""

from __future__ import annotations

import inspect
from contextlib import ExitStack
from typing import Any
from unittest import mock

import pytest
import torch

from hedgerow.core.errors import NotSupportedError
from hedgerow.core.ids import Ragged
from hedgerow.monolith import distributed_ps_factory as door
from hedgerow.monolith.distributed_ps_factory import trainer_choice
from hedgerow.monolith.layouts import OutConfig, Slice
from hedgerow.monolith.sync.clients import DummySyncClient
from hedgerow.monolith.tables.describe import chain, shards_of
from hedgerow.monolith.tables.hash_filters import create_hash_filters
from hedgerow.monolith.tables.multi_hash_table import CachedConfig
from hedgerow.monolith.tables.partitioned import FeatureIds
from hedgerow.monolith.test_utils import generate_test_hash_table_config
from hedgerow.sharding.exchange import LocalExchange
from hedgerow.sharding.pipeline import Item
from hedgerow.tables.admission import SlidingFilter
from hedgerow.tables.compressors import Fp16
from hedgerow.tables.config import TableConfig
from tests.golden.tables_factory import server_addresses

NO = inspect.Parameter.empty
SIGNATURES = {
    "MultiHashTableFactory": {"hash_filters": NO, "sync_clients": NO},
    "create_in_worker_multi_type_hash_table": {
        "shard_num": NO,
        "slot_to_config": NO,
        "hash_filter": NO,
        "sync_client": None,
        "queue_configs": None,
    },
    "create_multi_type_hash_table": {
        "num_ps": NO,
        "slot_to_config": NO,
        "hash_filters": NO,
        "sync_clients": None,
        "reduce_network_packets": False,
        "max_rpc_deadline_millis": 30,
    },
    "create_native_multi_hash_table": {
        "num_ps": NO,
        "slot_to_config": NO,
        "hash_filters": NO,
        "sync_clients": None,
        "max_rpc_deadline_millis": 30,
    },
    "create_in_worker_native_multi_hash_table": {
        "shard_num": NO,
        "slot_to_config": NO,
        "hash_filter": NO,
        "sync_client": None,
        "queue_configs": None,
    },
    "create_partitioned_hash_table": {
        "num_ps": NO,
        "use_native_multi_hash_table": NO,
        "max_rpc_deadline_millis": 30,
        "hash_filters": None,
        "sync_clients": None,
        "enable_gpu_emb": False,
        "queue_configs": None,
        "feature_name_to_config": None,
        "layout_configs": None,
        "feature_to_combiner": None,
        "feature_to_unmerged_slice_dims": None,
        "unique": False,
        "transfer_float16": False,
        "parity": False,
    },
    "create_hash_filters": {
        "ps_num": NO,
        "enable_hash_filter": NO,
        "config": b"",
        "filter_capacity": 300_000_000,
        "filter_split_num": 7,
        "filter_equal_probability": False,
        "filter_type": "sliding_hash_filter",
    },
}
KEYWORD_ONLY = {
    *("feature_name_to_config", "layout_configs", "feature_to_combiner"),
    *("feature_to_unmerged_slice_dims", "unique", "transfer_float16", "parity"),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_are_monolith(name: str) -> None:
    found = inspect.signature(getattr(door, name)).parameters
    assert {n: p.default for n, p in found.items()} == SIGNATURES[name]
    assert list(found) == list(SIGNATURES[name])
    for parameter in found.values():
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        if parameter.name in KEYWORD_ONLY:
            kind = inspect.Parameter.KEYWORD_ONLY
        assert parameter.kind == kind


def test_arguments_of_what_the_factories_make() -> None:
    call = inspect.signature(door.MultiHashTableFactory.__call__)
    assert list(call.parameters) == ["self", "idx", "slot_to_config"]
    helper = inspect.signature(generate_test_hash_table_config)
    assert {n: p.default for n, p in helper.parameters.items()} == {
        "dim": 2,
        "use_float16": False,
        "learning_rate": 1.0,
    }


def test_classes_are_there() -> None:
    for name in (
        *("DistributedHashTable", "MultiTypeHashTable", "MergedMultiTypeHashTable"),
        *("DistributedMultiTypeHashTable", "DistributedMultiTypeHashTableMpi"),
        *("PartitionedHashTable", "MultiHashTable", "convert_to_cached_config"),
    ):
        assert name in door.__all__
    assert {"from_configs", "from_cached_config"} <= set(dir(door.MultiHashTable))


# ---- Monolith's smoke tests: two slots of one config, dim 4, rate 0.1


def slots() -> dict[str, TableConfig]:
    config = generate_test_hash_table_config(4, learning_rate=0.1)
    return {"1": config, "2": config}


def off(count: int) -> list[Any]:
    return create_hash_filters(count, False)


def learns(table: Any) -> None:
    """One step over all slots, with equal ids and ids of several shards."""
    ids = {"1": torch.tensor([1, 2, 1]), "2": torch.tensor([1 << 48, 5])}
    grads = {slot: torch.ones(len(own), 4) for slot, own in ids.items()}
    table.apply_gradients({slot: (ids[slot], grads[slot]) for slot in ids})
    found = table.lookup(ids)
    expected = {"1": [-0.2, -0.1, -0.2], "2": [-0.1, -0.1]}
    for slot, rows in expected.items():
        wanted = torch.tensor(rows)[:, None].expand(-1, 4)
        torch.testing.assert_close(found[slot], wanted)
    assert table.size() == 4


def learns_on_servers(make: Any) -> None:
    with server_addresses(2) as servers, door.cluster(servers):
        table = make()
        try:
            learns(table)
        finally:
            for shard in shards_of(table):
                shard.close()  # pyright: ignore[reportAttributeAccessIssue]


def test_create_in_worker_multi_type_hash_table() -> None:
    learns(door.create_in_worker_multi_type_hash_table(1, slots(), off(0)[0]))


def test_create_in_worker_multi_type_hash_table_with_reduced_alltoall() -> None:
    table = door.create_in_worker_multi_type_hash_table(1, slots(), off(0)[0])
    learns(table)
    assert len(table.below.names) == 1  # one exchange for both slots


def test_create_multi_type_hash_table_0_ps() -> None:
    learns(door.create_multi_type_hash_table(0, slots(), off(0)))


def test_create_multi_type_hash_table_2_ps() -> None:
    learns_on_servers(lambda: door.create_multi_type_hash_table(2, slots(), off(2)))


def test_create_multi_type_hash_table_2_ps_with_reduced_packets() -> None:
    learns_on_servers(
        lambda: door.create_multi_type_hash_table(2, slots(), off(2), reduce_network_packets=True)
    )


def test_create_native_multi_hash_table_0_ps() -> None:
    learns(door.create_native_multi_hash_table(0, slots(), off(0)))


def test_create_native_multi_hash_table_2_ps() -> None:
    learns_on_servers(lambda: door.create_native_multi_hash_table(2, slots(), off(2)))


# ---- and what they do not test


def test_in_worker_native_over_two_ranks() -> None:
    def work(exchange: LocalExchange) -> list[list[float]]:
        with door.cluster(exchange=exchange):
            table = door.create_in_worker_native_multi_hash_table(2, slots(), None)
            ids = torch.tensor([1, 2, 1])
            table.apply_gradients({"1": (ids, torch.full((3, 4), 0.5))})
            found = table.lookup({"1": ids})["1"]
            for verb in (table.assign, table.assign_add):
                with pytest.raises(NotSupportedError):
                    verb({"1": (ids, found)})
            with pytest.raises(NotSupportedError):
                table.reinitialize("1", ids)
            return [round(value, 6) for value in found[:, 0].tolist()]

    assert LocalExchange.run(2, work) == [[-0.2, -0.1, -0.2]] * 2  # each rank took a step


def test_without_a_cluster_servers_are_in_this_process() -> None:
    for make in (
        lambda: door.create_multi_type_hash_table(2, slots(), off(2)),
        lambda: door.create_native_multi_hash_table(2, slots(), off(2)),
    ):
        learns(make())


@pytest.mark.parametrize(
    ("call", "numbers"),
    [
        (lambda: door.create_multi_type_hash_table(2, slots(), off(3)), "23"),
        (lambda: door.create_multi_type_hash_table(0, slots(), off(4)), "04"),
        (lambda: door.create_native_multi_hash_table(2, slots(), off(1)), "21"),
        (lambda: door.create_native_multi_hash_table(3, slots(), off(3), [None]), "31"),
        (lambda: door.create_multi_type_hash_table(3, slots(), off(3), [None] * 5), "35"),
        (lambda: partitioned(2, hash_filters=off(5)), "25"),
        (lambda: partitioned(3, sync_clients=[None] * 4), "34"),
        (lambda: door.MultiHashTableFactory([None] * 2, [None] * 3), "23"),
        (lambda: door.create_in_worker_multi_type_hash_table(2, slots(), None), "21"),
        (lambda: partitioned(2, enable_gpu_emb=True), "21"),
    ],
)
def test_lists_of_the_wrong_length(call: Any, numbers: str) -> None:
    with pytest.raises(ValueError, match=r"\d") as raised:
        call()
    assert set(numbers) <= set(str(raised.value))


def test_the_cluster_has_as_many_servers() -> None:
    with (
        door.cluster({"ps": ["127.0.0.1:1"] * 3}),
        pytest.raises(ValueError, match=r"num_ps is 2.*3 servers"),
    ):
        door.create_native_multi_hash_table(2, slots(), off(2))


def partitioned(num_ps: int, **settings: Any) -> Any:
    return door.create_partitioned_hash_table(
        num_ps, True, feature_name_to_config=slots(), **settings
    )


def test_a_config_is_known_by_its_content() -> None:
    one = door.convert_to_cached_config(slots())
    assert one is door.convert_to_cached_config(dict(reversed(slots().items())))
    assert isinstance(one, CachedConfig)
    assert (one.names, one.dims, one.expire) == (("1", "2"), (4, 4), (None, None))
    other = door.convert_to_cached_config({**slots(), "2": generate_test_hash_table_config(4)})
    assert other is not one
    assert other.serialized != one.serialized
    table = door.MultiHashTable.from_cached_config(one, name_suffix="7")
    assert (table.shared_name, table.names) == ("MonolithMultiHashTable_7", ("1", "2"))


def test_the_trainer_with_tables_on_gpus() -> None:
    chosen = trainer_choice(full_sync=True, fused_layout=True, gpu_workers=1)
    table = chosen.factory(
        use_native_multi_hash_table=True, feature_name_to_config=slots(), **chosen.settings
    )
    assert (table.path, table.shards.count) == ("alltoall", 1)


def test_test_config_shows_halves() -> None:
    assert generate_test_hash_table_config(use_float16=True).segments[0].compressor == Fp16()


# ---- filters


def test_hash_filters() -> None:
    assert [len(create_hash_filters(n, True)) for n in (0, 1, 3)] == [1, 1, 3]
    with pytest.raises(ValueError, match="filter_type"):
        create_hash_filters(1, True, filter_type="no such")
    thresholds = bytes([0x0A, 4, 0x08, 3, 0x10, 5, 0x10, 2])  # slot 3: 5; the default: 2
    (some,) = create_hash_filters(0, True, thresholds)
    assert (some.admit.default, some.admit.slots) == (2, ((3, 5),))
    assert isinstance(some.counts, SlidingFilter)
    (chance,) = create_hash_filters(
        1, True, thresholds, filter_type="probabilistic_filter", filter_equal_probability=True
    )
    assert (chance.admit.form, chance.counts) == ("equal", None)
    with pytest.raises(ValueError, match="message"):
        create_hash_filters(1, True, b"\xff")


@pytest.mark.parametrize("num_ps", [0, 2])
@pytest.mark.parametrize("native", [True, False])
def test_filters_keep_ids_out(num_ps: int, native: bool) -> None:
    filters = create_hash_filters(num_ps, True, bytes([0x10, 1]))
    make = door.create_native_multi_hash_table if native else door.create_multi_type_hash_table
    table: Any = make(num_ps, slots(), filters)
    batch = {"1": (torch.tensor([1, 2]), torch.ones(2, 4))}
    table.apply_gradients(batch)
    assert table.size() == 0
    table.apply_gradients(batch)
    assert table.size() == 2


def one_filter_a_shard(make: Any) -> None:
    """Shard 0 admits every id, shard 1 from the second sighting on."""
    (off_filter,), (on_filter,) = off(1), create_hash_filters(1, True, bytes([0x10, 1]))
    table = make([off_filter, on_filter])
    try:
        ids = torch.arange(10)
        table.apply_gradients({"1": (ids, torch.ones(10, 4))})
        rows = table.lookup({"1": ids})["1"][:, 0]
        assert (rows != 0).tolist() == [True, False] * 5  # ids are owned by their remainder
        assert table.size() == 5
    finally:
        for shard in shards_of(table):
            getattr(shard, "close", lambda: None)()


MAKERS: dict[str, Any] = {
    "plain": lambda filters: door.create_multi_type_hash_table(2, slots(), filters),
    "reduced": lambda filters: door.create_multi_type_hash_table(
        2, slots(), filters, reduce_network_packets=True
    ),
    "native": lambda filters: door.create_native_multi_hash_table(2, slots(), filters),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_the_filter_of_a_shard_is_its_own(kind: str) -> None:
    one_filter_a_shard(MAKERS[kind])


@pytest.mark.parametrize("kind", MAKERS)
def test_the_filter_of_a_server_is_its_own(kind: str) -> None:
    with server_addresses(2) as servers, door.cluster(servers):
        one_filter_a_shard(MAKERS[kind])


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("native", [False, True])
def test_the_filter_of_a_partitioned_shard_is_its_own(native: bool, remote: bool) -> None:
    (off_filter,), (on_filter,) = off(1), create_hash_filters(1, True, bytes([0x10, 1]))
    with ExitStack() as running:
        if remote:
            servers = running.enter_context(server_addresses(2))
            running.enter_context(door.cluster(servers))
        table: Any = door.create_partitioned_hash_table(
            2,
            native,
            hash_filters=[off_filter, on_filter],
            feature_name_to_config=slots(),
            layout_configs={"vec": OutConfig("CONCAT", (Slice("1", 0, 4),))},
        )
        batch = {"1": (False, Ragged.from_lists([[i] for i in range(10)]))}
        with table.queues as queues, queues.ahead([Item(FeatureIds(batch, 10), step=0)]) as ahead:
            for item in ahead:
                grads = {name: torch.ones_like(own) for name, own in item.value.layouts.items()}
                table.put_gradients(item.value, grads, step=0)
        rows = table.lookup(batch, 10)["vec"][:, 0]
        assert (rows != 0).tolist() == [True, False] * 5


class _Attached(DummySyncClient):
    """Writes down what is attached to it."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def attach(self, name: str, table: Any) -> None:
        self.names.append(name)

    def attach_multi(self, name: str, tables: Any) -> None:
        self.names.append(name)


@pytest.mark.parametrize("num_ps", [0, 2])
def test_native_shards_come_from_the_factory(num_ps: int) -> None:
    clients = [_Attached() for _ in range(max(num_ps, 1))]
    with mock.patch.object(
        door.MultiHashTableFactory,
        "__call__",
        autospec=True,
        side_effect=door.MultiHashTableFactory.__call__,
    ) as made:
        table = partitioned(num_ps, sync_clients=clients)
        assert [call.args[1] for call in made.call_args_list] == list(range(max(num_ps, 1)))
        assert table.sync_clients == tuple(clients)
        wanted = [[f"MonolithMultiHashTable_{i}"] for i in range(max(num_ps, 1))]
        assert [client.names for client in clients] == wanted  # once each
        if num_ps:
            made.reset_mock()
            clients = [_Attached() for _ in range(num_ps)]
            door.create_native_multi_hash_table(num_ps, slots(), off(num_ps), clients)
            assert [call.args[1] for call in made.call_args_list] == [0, 1]
            assert [client.names for client in clients] == wanted


@pytest.mark.parametrize("num_ps", [0, 2])
def test_an_empty_list_of_clients_means_none(num_ps: int) -> None:
    shards = max(num_ps, 1)
    for table in (
        door.create_multi_type_hash_table(num_ps, slots(), off(num_ps), []),
        door.create_native_multi_hash_table(num_ps, slots(), off(num_ps), []),
        partitioned(num_ps, sync_clients=[]),
    ):
        assert table.sync_clients == (None,) * shards
    learns(door.create_native_multi_hash_table(num_ps, slots(), off(num_ps), []))


# ---- queues


QUEUES = {
    "embedding_prefetch_capacity": 3,
    "enable_pipelined_fwda2a": 2,
    "enable_async_optimize": 4,
    "enable_pipelined_bwda2a": 1,
}


def built_depths(table: Any) -> dict[str, int]:
    """The capacities of the queues themselves."""
    with table.queues.ahead([]) as ahead:
        return {
            "embedding_prefetch_capacity": ahead.capacity,
            "enable_pipelined_fwda2a": ahead.started.capacity,
            "enable_async_optimize": table.queues.optimizing.capacity,
            "enable_pipelined_bwda2a": table.queues.updating.capacity,
        }


def test_queues_of_in_worker_tables() -> None:
    table = door.create_in_worker_multi_type_hash_table(1, slots(), None, None, QUEUES)
    assert built_depths(table.below) == QUEUES


def test_queues_of_in_worker_native_tables() -> None:
    table = door.create_in_worker_native_multi_hash_table(1, slots(), None, queue_configs=QUEUES)
    assert built_depths(table) == QUEUES


def test_queues_of_partitioned_tables() -> None:
    assert built_depths(partitioned(0, queue_configs=QUEUES)) == QUEUES
    assert built_depths(partitioned(1, queue_configs=QUEUES, enable_gpu_emb=True)) == QUEUES


def test_queues_that_are_off_or_wrong() -> None:
    for given in (None, {}, dict.fromkeys(QUEUES, 0), dict.fromkeys(QUEUES)):
        table = door.create_in_worker_native_multi_hash_table(1, slots(), None, None, given)
        assert set(built_depths(table).values()) == {0}
    for wrong in ({"no_such_queue": 1}, {"enable_async_optimize": -1}):
        for make in (
            lambda wrong=wrong: door.create_in_worker_native_multi_hash_table(
                1, slots(), None, None, wrong
            ),
            lambda wrong=wrong: door.create_in_worker_multi_type_hash_table(
                1, slots(), None, None, wrong
            ),
            lambda wrong=wrong: partitioned(0, queue_configs=wrong),
        ):
            with pytest.raises(ValueError, match="queue_configs"):
                make()


def test_tables_over_ranks_in_the_partitioned_flow() -> None:
    table = partitioned(1, enable_gpu_emb=True)
    assert chain(table)[0] == "PartitionedTable"
    assert table.path == "alltoall"
    for verb in (table.assign, table.assign_add):
        with pytest.raises(NotSupportedError):
            verb([], [])
    with pytest.raises(ValueError, match="asynchronous push"):
        partitioned(1, enable_gpu_emb=True, queue_configs={"post_push": 1})
    with pytest.raises(ValueError, match="feature_name_to_config"):
        door.create_partitioned_hash_table(1, True)
