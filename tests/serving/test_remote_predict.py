"""remote_predict() against servers of plain grpcio handlers and bytes."""

from __future__ import annotations

import inspect
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import grpc
import pytest
import torch
from torch import Tensor

from hedgerow.monolith import distributed_serving_ops as door
from hedgerow.monolith.remote_predict import remote_answer
from hedgerow.serving.channels import Replicas
from hedgerow.serving.model import ServingError
from hedgerow.serving.request_context import within

from .plain_server import PlainServer, field, fields, float_tensor, plain_server, response

IDS = torch.tensor([3, -1])
ROWS = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
ROWS_BYTES = struct.pack("<4f", 1, 2, 3, 4)
AMPLE_MS = 60_000


def rows(_: bytes, __: Any) -> bytes:
    return response({"emb": float_tensor([2, 2], ROWS_BYTES)})


@contextmanager
def one_replica(answer: Any) -> Iterator[PlainServer]:
    with plain_server(answer) as server, Replicas({"ps:1": [server.address]}):
        yield server


@contextmanager
def two_servers(answer: Any, other_answer: Any) -> Iterator[tuple[PlainServer, PlainServer]]:
    with plain_server(answer) as server, plain_server(other_answer) as other:
        yield server, other


def both(one: PlainServer, other: PlainServer) -> dict[str, list[str]]:
    return {"ps:1": [one.address, other.address]}


def ask(
    model_name: str | None = "m:ps_1",
    task: int = 1,
    old_model_name: str | None = None,
    model_version: int = -1,
    **more: Any,
) -> list[Tensor]:
    more = {"max_rpc_deadline_millis": AMPLE_MS, "signature_name": "lookup", **more}
    return door.remote_predict(
        ["id"], [IDS], ["emb"], model_name, task, old_model_name, model_version, **more
    )


def spec_of(server: PlainServer) -> dict[int, list[Any]]:
    (spec,) = fields(server.requests[-1])[1]
    return fields(spec)


def test_outputs_alone_are_returned() -> None:
    with one_replica(rows):
        (found,) = ask(output_types=[torch.float32])
    assert torch.equal(found, ROWS)


def test_request_is_what_monolith_sends() -> None:
    with one_replica(rows) as server:
        ask()
    request = fields(server.requests[0])
    assert fields(request[1][0]) == {1: [b"ps_1"], 3: [b"lookup"]}
    assert request[3] == [b"emb"]
    entry = fields(request[2][0])
    tensor = fields(entry[2][0])
    assert entry[1] == [b"id"]
    assert 4 not in tensor  # typed values, not tensor_content
    assert tensor[10] == [b"\x03" + b"\xff" * 9 + b"\x01"]


@pytest.mark.parametrize(("version", "wire"), [(-1, None), (0, b""), (3, b"\x08\x03")])
def test_version_stands_on_the_wire_only_from_0(version: int, wire: bytes | None) -> None:
    with one_replica(rows) as server:
        ask(model_version=version)
    assert spec_of(server).get(2) == (None if wire is None else [wire])


@pytest.mark.parametrize(
    ("key", "old", "name"),
    [
        ("ps:1", None, b"ps_1"),
        ("ps:1", "", b"ps_1"),
        ("dense:0_a", "dense_0_a", b"dense_0_a"),
        ("m:ps_1", "ps_0", b"m:ps_1"),
    ],
)
def test_addresses_and_names_by_style_of_the_keys(key: str, old: str | None, name: bytes) -> None:
    with plain_server(rows) as server, Replicas({key: [server.address]}):
        ask(old_model_name=old)
    assert spec_of(server)[1] == [name]


def test_parameters_are_those_of_monolith() -> None:
    found = inspect.signature(door.remote_predict).parameters
    required = "input_tensor_alias input_tensors output_tensor_alias model_name task old_model_name"
    assert [name for name, one in found.items() if one.default is one.empty] == required.split()
    assert [(n, one.default) for n, one in found.items() if one.default is not one.empty] == [
        ("model_version", -1),
        ("fail_op_on_rpc_error", True),
        ("max_rpc_deadline_millis", 30),
        ("output_types", None),
        ("name", None),
        ("signature_name", "serving_default"),
    ]


def test_model_name_must_be_specified() -> None:
    with pytest.raises(ValueError, match=r"^model_name must be specified\.$"):
        ask(model_name=None)


@pytest.mark.parametrize(
    ("aliases", "types"),
    [(["id", "other"], [torch.float32]), (["id"], []), (["id"], [torch.int8] * 2)],
)
def test_counts_must_match(aliases: list[str], types: list[torch.dtype]) -> None:
    with (
        one_replica(rows) as server,
        pytest.raises(ServingError, match="pass one for each") as caught,
    ):
        door.remote_predict(aliases, [IDS], ["emb"], "m", 1, None, output_types=types)
    assert caught.value.code == "INVALID_ARGUMENT"
    assert not server.requests


def test_an_input_is_named_once() -> None:
    with one_replica(rows) as server, pytest.raises(ServingError, match="twice") as caught:
        door.remote_predict(["id", "id"], [IDS, IDS], ["emb"], "m", 1, None)
    assert (caught.value.code, server.requests) == ("INVALID_ARGUMENT", [])


def refuse(_: bytes, context: Any) -> NoReturn:
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not today")


def test_error_has_the_code_and_the_text_of_the_server() -> None:
    with one_replica(refuse), pytest.raises(ServingError, match=r"^not today$") as caught:
        ask()
    assert caught.value.code == "FAILED_PRECONDITION"


def test_without_failing_outputs_are_empty_scalars() -> None:
    types = [torch.float32, torch.int64]
    with one_replica(refuse):
        found = remote_answer(["id"], [IDS], ["a", "b"], "m", 1, None, -1, False, AMPLE_MS, types)
    assert (found.code, found.message) == ("FAILED_PRECONDITION", "not today")
    assert [(x.dtype, x.shape) for x in found.outputs] == [(dtype, ()) for dtype in types]


@pytest.mark.parametrize(
    "outputs", [{}, {"other": float_tensor([1], b"\0" * 4)}, {"emb": float_tensor([2], b"\0" * 4)}]
)
def test_missing_or_broken_output_is_an_internal_error_by_name(outputs: dict[str, bytes]) -> None:
    answer = response(outputs)
    with one_replica(lambda *_: answer), pytest.raises(ServingError, match="'emb'") as e:
        ask(fail_op_on_rpc_error=False)
    assert e.value.code == "INTERNAL"


def test_output_of_another_type_is_an_internal_error() -> None:
    with (
        one_replica(rows),
        pytest.raises(ServingError, match=r"'emb'.*torch\.int64") as caught,
    ):
        ask(output_types=[torch.int64])
    assert caught.value.code == "INTERNAL"


def test_bytes_that_are_no_message_are_an_internal_error() -> None:
    with (
        one_replica(lambda *_: b"\xff" * 9),
        pytest.raises(ServingError, match="PredictResponse") as caught,
    ):
        ask()
    assert caught.value.code == "INTERNAL"


@pytest.mark.parametrize("known", [{}, {"ps:0": ["127.0.0.1:1"]}, {"ps:1": []}])
def test_no_replica_is_unavailable(known: dict[str, list[str]]) -> None:
    with Replicas(known), pytest.raises(ServingError) as caught:
        ask()
    assert caught.value.code == "UNAVAILABLE"
    for word in ("no remote server available", "ps_1", "lookup"):
        assert word in str(caught.value)


def test_no_replicas_at_all_is_unavailable() -> None:
    with pytest.raises(ServingError, match=r"no remote server available.*m:ps_1.*lookup"):
        ask()


def slow(release: threading.Event) -> Any:
    def answer(request: bytes, context: Any) -> bytes:
        release.wait(60)
        return rows(request, context)

    return answer


def test_slow_server_gives_deadline_exceeded_in_time() -> None:
    release = threading.Event()
    with one_replica(slow(release)):
        begin_s = time.monotonic()
        with pytest.raises(ServingError) as caught:
            ask(max_rpc_deadline_millis=200)
        took_s = time.monotonic() - begin_s
        release.set()
    assert caught.value.code == "DEADLINE_EXCEEDED"
    assert 0.15 <= took_s < 30  # far below the server's 60 s, and not at once


def test_surrounding_deadline_is_a_cap() -> None:
    release = threading.Event()
    with one_replica(slow(release)):
        with within(0.2), pytest.raises(ServingError) as caught:
            ask()
        with within(-1.0), pytest.raises(ServingError, match="surrounding") as late:
            ask()
        release.set()
    assert caught.value.code == late.value.code == "DEADLINE_EXCEEDED"


def test_replicas_are_chosen_alike() -> None:
    with two_servers(rows, rows) as (one, other), Replicas(both(one, other)) as replicas:
        for _ in range(10):
            ask()
        chosen = Counter(replicas.choose("ps:1")[0] for _ in range(2000))
    assert len(one.requests) + len(other.requests) == 10
    assert min(chosen.values()) > 800  # 1000 +- 22


def test_addresses_known_now_count() -> None:
    known = {"ps:1": []}
    with two_servers(rows, rows) as (one, other), Replicas(known) as replicas:
        replicas.update({"ps:1": [one.address]})
        ask()
        replicas.update({"ps:1": [other.address]})
        ask()
        replicas.update({})
        with pytest.raises(ServingError, match="no remote server available"):
            ask()
    assert (len(one.requests), len(other.requests)) == (1, 1)


def test_call_under_way_outlives_its_address() -> None:
    release, found = threading.Event(), []
    with plain_server(slow(release)) as server, Replicas({"ps:1": [server.address]}) as replicas:
        thread = threading.Thread(target=lambda: found.extend(ask()))
        thread.start()
        wait_until(lambda: bool(server.requests))
        replicas.update({})
        release.set()
        thread.join(60)
    assert torch.equal(found[0], ROWS)


def wait_until(true: Any, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    pause = threading.Event()
    while not true():
        assert time.monotonic() < end
        pause.wait(0.005)


def test_hedging_takes_the_earlier_answer_and_gives_up_the_other() -> None:
    release = threading.Event()
    with plain_server(slow(release)) as late, plain_server(rows) as quick:
        known = {"ps:1": [late.address, quick.address]}
        with Replicas(known, hedge_after_s=0.02):
            while not late.requests:  # the choice of the first is free
                (found,) = ask()
                assert torch.equal(found, ROWS)
            assert late.cancelled.wait(60)
        release.set()


def test_hedging_asks_the_other_when_one_is_away() -> None:
    with plain_server(rows) as server:
        known = {"ps:1": ["127.0.0.1:1", server.address]}  # nobody listens on the first
        with Replicas(known, hedge_after_s=60):
            for _ in range(20):
                assert torch.equal(ask()[0], ROWS)
    with (
        Replicas({"ps:1": ["127.0.0.1:1", "127.0.0.1:2"]}, hedge_after_s=60),
        pytest.raises(ServingError) as caught,
    ):
        ask()
    assert caught.value.code == "UNAVAILABLE"


def test_hedging_repeats_nothing_that_a_server_refuses() -> None:
    with (
        two_servers(refuse, refuse) as (one, other),
        Replicas(both(one, other), hedge_after_s=60),
        pytest.raises(ServingError, match="not today"),
    ):
        ask()
    assert len(one.requests) + len(other.requests) == 1


def test_hedging_still_ends_at_the_deadline() -> None:
    release = threading.Event()
    with plain_server(slow(release)) as one, plain_server(slow(release)) as other:
        known = {"ps:1": [one.address, other.address]}
        with Replicas(known, hedge_after_s=0.02), pytest.raises(ServingError) as caught:
            ask(max_rpc_deadline_millis=200)
        release.set()
    assert caught.value.code == "DEADLINE_EXCEEDED"
    assert (len(one.requests), len(other.requests)) == (1, 1)


def test_one_process_has_replicas_once() -> None:
    with Replicas({}), pytest.raises(RuntimeError, match="update"):
        Replicas({}).__enter__()


def test_scalar_field_helper_reads_what_it_writes() -> None:
    assert fields(field(5, b"x" * 300)) == {5: [b"x" * 300]}
