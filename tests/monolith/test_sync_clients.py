"""Parameter sync by Monolith's names: its published tests, and the rules of its clients."""

from __future__ import annotations

import inspect
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from hedgerow.core import process_state
from hedgerow.core.errors import DtypeError, InputError
from hedgerow.monolith import distributed_ps_factory as factory
from hedgerow.monolith import distributed_serving_ops as door
from hedgerow.monolith.layouts import OutConfig, Slice
from hedgerow.monolith.tables.describe import shards_of, shared_names
from hedgerow.monolith.test_utils import generate_test_hash_table_config
from hedgerow.sharding.exchange import LocalExchange
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.host import HostTable
from hedgerow.tables.initializers import Zeros
from hedgerow.tables.monolith_rules import MonolithSgd
from hedgerow.wire import push
from hedgerow.wire import push as push_messages
from hedgerow.wire import tensors as wire_tensors
from hedgerow.wire.codec import to_bytes
from hedgerow.wire.messages import parameter_sync, tf_serving
from hedgerow.wire.rpc import PREDICTION_SERVICE, methods

from ..ps.servers import server_thread


@pytest.fixture(autouse=True)
def _fresh_names() -> Iterator[None]:
    process_state.clear()
    yield
    process_state.clear()


@pytest.fixture
def servers() -> Iterator[list[door.DummySyncServer]]:
    with ExitStack() as running:
        yield [running.enter_context(door.DummySyncServer("localhost:0")) for _ in range(2)]


def address_of(server: door.DummySyncServer) -> str:
    return f"localhost:{int(server.get_port())}"


def config_of(servers: list[door.DummySyncServer], **more: Any) -> bytes:
    targets = [address_of(server) for server in servers]
    return to_bytes(parameter_sync.ClientConfig(targets=targets, **more))


# ---- A13: Monolith's published tests


def test_published_1_two_dummy_servers_get_both_rows(servers: list[door.DummySyncServer]) -> None:
    config = config_of(servers)
    client = door.parameter_sync_client_from_config(config)
    table = HostTable(
        TableConfig("table", (Segment(3, Zeros(), MonolithSgd(learning_rate=0.1)),)),
        sync_client=client,
    )
    table.apply_gradients(torch.tensor([0, 0, 1]), torch.full((3, 3), -1.0), step=0)
    wanted = torch.tensor([[0.2] * 3, [0.1] * 3])
    assert torch.allclose(table.lookup(torch.tensor([0, 1])).rows_of(), wanted)
    (text,) = client.create_sync_op(config)
    told = json.loads(text)["responses"]
    assert [(one["status_code"], one["update_num"]) for one in told] == [(0, 2), (0, 2)]
    assert [one["target"] for one in told] == sorted(address_of(one) for one in servers)
    for server in servers:
        (push,) = server.received
        order = push.inputs["table_id"].argsort()
        assert torch.allclose(push.inputs["table_value"][order], wanted)
        assert server.shutdown().tolist() == [100]
    assert client.create_sync_op(config) == ["{}"]


def test_published_1_with_a_client_made_of_what_the_config_gives(
    servers: list[door.DummySyncServer],
) -> None:
    config = config_of(servers)
    made = door.parameter_sync_client_from_config(config, "of_this_test")
    client = door.ParameterSyncClient(made)
    assert client.handle is made.handle
    table = HostTable(generate_test_hash_table_config(3, learning_rate=0.1), sync_client=client)
    table.apply_gradients(torch.tensor([0, 0, 1]), torch.full((3, 3), -1.0), step=0)
    (text,) = client.create_sync_op(config)
    assert [one["update_num"] for one in json.loads(text)["responses"]] == [2, 2]
    dummy = door.ParameterSyncClient(door.create_dummy_sync_client())
    other = HostTable(generate_test_hash_table_config(3), sync_client=dummy)
    other.apply_gradients(torch.tensor([0]), torch.ones(1, 3))
    assert door.ParameterSyncClient(dummy).create_sync_op(config) == ["{}"]


def _published_request(multi: bool) -> Any:
    request = parameter_sync.PushRequest()
    two, one = torch.tensor([1, 2]), torch.tensor([3])
    push.add_rows(request, "table1", two, torch.tensor([[1.0, 2.0], [3.0, 4.0]]), multi=multi)
    push.add_rows(request, "table2", one, torch.tensor([[5.0]]), multi=multi)
    return request


def test_published_4_conversion_of_plain_and_multi_tables() -> None:
    def inputs(multi: bool) -> dict[str, list[Any]]:
        found = push.to_predict(_published_request(multi), compat="typed").inputs
        return {name: wire_tensors.to_torch(found[name]).tolist() for name in sorted(found)}

    assert inputs(multi=False) == {
        "table1_id": [1, 2],
        "table1_value": [[1.0, 2.0], [3.0, 4.0]],
        "table2_id": [3],
        "table2_value": [[5.0]],
    }
    assert inputs(multi=True) == {
        "id": [1, 2, 3],
        "id_split": [0, 2, 3],
        "flat_value": [1.0, 2.0, 3.0, 4.0, 5.0],
    }


def test_published_5_split() -> None:
    request = parameter_sync.PushRequest(model_name="hello", signature_name="hashtable_assign")
    for i, (n, dim) in enumerate([(0, 1), (2, 1), (3, 2)]):
        rows = torch.arange(n).float()[:, None].expand(-1, dim).contiguous()
        push.add_rows(request, f"table{i}", torch.arange(n), rows)
    assert request.ByteSize() == 111
    assert push_messages.split_request(request, rule="reference") == [request]
    request.timeout_in_ms = 100
    assert request.ByteSize() == 113
    parts = push_messages.split_request(request, 60, "reference")
    found = [[len(delta.fids) for delta in part.delta_hash_tables] for part in parts]
    assert found == [[0, 1, 1], [0, 1, 2]]


def test_published_6_touched_keys(servers: list[door.DummySyncServer]) -> None:
    table = HostTable(TableConfig("t", (Segment(1, Zeros(), MonolithSgd(learning_rate=0.1)),)))
    touched = table.touched("published", capacity=1000, overflow="forget")
    for key in range(1005):
        table.apply_gradients(torch.tensor([key]), torch.ones(1, 1))
    taken = touched.take()
    assert (taken.forgotten, sorted(taken.ids.tolist())) == (1001, [1001, 1002, 1003, 1004])


# ---- clients


def test_clients_have_monolith_names_and_places() -> None:
    one, two = door.create_parameter_sync_clients(2)
    assert [one.handle.name, two.handle.name] == ["MonolithSyncClient_0", "MonolithSyncClient_1"]
    assert [one.placement, two.placement] == [
        "/job:ps/task:0/device:CPU:0",
        "/job:ps/task:1/device:CPU:0",
    ]
    assert door.parameter_sync_client_from_config(name_suffix="0") is one
    (alone,) = door.create_parameter_sync_clients(0)
    assert (alone.handle.name, alone.placement) == ("MonolithSyncClient_", None)
    del one, two
    exporting = door.create_parameter_sync_clients(2, exporting_standalone=True)
    assert [client.placement for client in exporting] == [None, None]
    assert (
        inspect.signature(door.create_parameter_sync_clients)
        .parameters["exporting_standalone"]
        .default
        is False
    )
    for client in (alone, *exporting):
        assert client.as_op()() is None
        assert door.ParameterSyncClient(client.handle).handle is client.handle


def test_only_targets_of_the_first_config_count(servers: list[door.DummySyncServer]) -> None:
    client = door.parameter_sync_client_from_config(config_of(servers, model_name="no"), "x")
    assert client.handle.targets == tuple(sorted(address_of(server) for server in servers))
    assert door.parameter_sync_client_from_config(None, "x") is client
    assert client.handle.targets
    with pytest.raises(InputError):
        door.parameter_sync_client_from_config(b"\xff", "y")
    with pytest.raises(DtypeError, match="name_suffix"):
        door.parameter_sync_client_from_config(None, 3)  # type: ignore[arg-type]
    with pytest.raises(DtypeError, match="config_str"):
        client.create_sync_op("text")  # type: ignore[arg-type]
    with pytest.raises(DtypeError, match="handle"):
        door.ParameterSyncClient(object())  # type: ignore[arg-type]


def test_the_dummy_client_follows_nothing(servers: list[door.DummySyncServer]) -> None:
    dummy = door.create_dummy_sync_client()
    table = HostTable(generate_test_hash_table_config(), sync_client=dummy)
    table.apply_gradients(torch.tensor([1]), torch.ones(1, 2))
    client = door.ParameterSyncClient(dummy)
    assert client.create_sync_op(config_of(servers)) == ["{}"]
    assert not servers[0].received
    with pytest.raises(InputError):
        client.create_sync_op(b"\xff")


def test_a_table_refuses_what_cannot_follow_it() -> None:
    with pytest.raises(DtypeError, match="attach"):
        HostTable(generate_test_hash_table_config(), sync_client=object())  # type: ignore[arg-type]
    with pytest.raises(DtypeError, match="attach"):
        factory.create_native_multi_hash_table(
            0, {"1": generate_test_hash_table_config()}, [None], [object()]
        )


# ---- the dummy server


def test_a_dummy_server_s_port_is_free_after_shutdown() -> None:
    server = door.DummySyncServer("127.0.0.1:0")
    port = server.get_port()
    assert (port.dtype, port.shape) == (torch.int32, (1,))
    with pytest.raises(InputError, match="cannot be listened on"):
        door.create_dummy_sync_server(f"127.0.0.1:{int(port)}")
    done = server.shutdown()
    assert (done.dtype, done.tolist()) == (torch.int64, [100])
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", int(port)))
    assert server.shutdown().tolist() == [100]
    assert server.as_op()() is None
    assert server.handle.port == int(port)
    for wrong in ("localhost", 7):
        with pytest.raises(InputError, match="HOST:PORT"):
            door.DummySyncServer(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("compat", [None, "typed"])
def test_a_dummy_server_keeps_raw_and_typed_pushes(
    servers: list[door.DummySyncServer], compat: Any
) -> None:
    request = _published_request(multi=False)
    request.model_name, request.signature_name = "ps_0", "hashtable_assign"
    path = methods(PREDICTION_SERVICE)["Predict"].path
    with grpc.insecure_channel(address_of(servers[0])) as channel:
        data = to_bytes(push.to_predict(request, compat=compat))
        answer = tf_serving.PredictResponse.FromString(channel.unary_unary(path)(data, timeout=30))
    assert answer.model_spec.name == "ps_0"
    assert answer.model_spec.signature_name == "hashtable_assign"
    assert not answer.outputs
    (kept,) = servers[0].received
    assert (kept.model_name, kept.signature_name) == ("ps_0", "hashtable_assign")
    assert kept.inputs["table1_value"].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert "table1_id (2,)" in repr(kept)


def test_a_dummy_server_refuses_other_inputs_and_is_known(
    servers: list[door.DummySyncServer],
) -> None:
    path = methods(PREDICTION_SERVICE)["Predict"].path
    with grpc.insecure_channel(address_of(servers[0])) as channel:
        for data in (to_bytes(push.to_predict(_published_request(multi=True))), b"\xff"):
            with pytest.raises(grpc.RpcError) as refused:
                channel.unary_unary(path)(data, timeout=30)
            assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        health = health_pb2_grpc.HealthStub(channel)
        state = health.Check(health_pb2.HealthCheckRequest(service=PREDICTION_SERVICE), timeout=30)
        assert state.status == health_pb2.HealthCheckResponse.SERVING
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        (told,) = stub.ServerReflectionInfo(iter([asked]), timeout=30)
        names = [one.name for one in told.list_services_response.service]
        assert PREDICTION_SERVICE in names
    assert not servers[0].received


# ---- through the factories

SLOTS = {"1": generate_test_hash_table_config(2), "2": generate_test_hash_table_config(3)}
BATCH = {"1": (torch.arange(6), torch.ones(6, 2)), "2": (torch.arange(4), torch.ones(4, 3))}


def pushed_names(client: door.ParameterSyncClient) -> list[str]:
    handle: Any = client.handle
    return [handle._multi] if handle._multi else sorted(handle._tables)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("where", ["here", "local shards", "servers"])
def test_clients_of_a_factory_push_what_their_shard_learned(
    servers: list[door.DummySyncServer], native: bool, where: str
) -> None:
    num_ps = 0 if where == "here" else 2
    clients = door.create_parameter_sync_clients(num_ps)
    build = (
        factory.create_native_multi_hash_table if native else factory.create_multi_type_hash_table
    )
    with ExitStack() as running:
        cluster = None
        if where == "servers":
            started = [running.enter_context(server_thread(name=f"{i}/2")) for i in range(2)]
            cluster = {"ps": [one.address for one in started]}
        running.enter_context(factory.cluster(cluster))
        built = build(num_ps, SLOTS, [None] * max(1, num_ps), clients)
        assert built.sync_clients == tuple(clients)
        assert sorted(n for client in clients for n in pushed_names(client)) == sorted(
            shared_names(built)
        )
        built.apply_gradients(BATCH)
        for shard, client in enumerate(clients):
            (told, _) = json.loads(client.create_sync_op(config_of(servers))[0])["responses"]
            # a dummy server takes plain tables alone, and tells what a multi table is refused for
            assert told["status_code"] == (3 if native else 0)
            assert told["update_num"] == (0 if native else 10 // len(clients))
            if not native:
                (*_, last) = servers[0].received
                ids = torch.cat([v for name, v in last.inputs.items() if name.endswith("_id")])
                assert num_ps == 0 or set((ids % 2).tolist()) == {shard}
        for shard in shards_of(built):
            close = getattr(shard, "close", lambda: None)
            close()


@pytest.mark.parametrize("native", [True, False])
def test_a_client_of_a_rank_follows_the_rows_of_its_rank(native: bool) -> None:
    build = (
        factory.create_in_worker_native_multi_hash_table
        if native
        else factory.create_in_worker_multi_type_hash_table
    )
    client = door.parameter_sync_client_from_config()
    with factory.cluster(exchange=LocalExchange.of(2)[1]):
        built = build(2, SLOTS, None, client)
    assert pushed_names(client) == sorted(shared_names(built))


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("where", ["here", "local shards", "ranks"])
def test_clients_of_partitioned_tables_follow_their_shards(native: bool, where: str) -> None:
    num_ps = 0 if where == "here" else 2
    clients = door.create_parameter_sync_clients(num_ps)
    features = {"1": SLOTS["1"], "2": SLOTS["2"]}
    with factory.cluster(exchange=LocalExchange.of(2)[1]):
        built = factory.create_partitioned_hash_table(
            num_ps,
            native,
            sync_clients=clients,
            enable_gpu_emb=where == "ranks",
            feature_name_to_config=features,
            layout_configs={
                slot: OutConfig("CONCAT", (Slice(slot, 0, config.dim),))
                for slot, config in features.items()
            },
        )
    assert built.sync_clients == tuple(clients)
    names = [pushed_names(client) for client in clients]
    assert sorted(n for own in names for n in own) == sorted(shared_names(built))
    if where == "ranks":
        assert not names[0]
