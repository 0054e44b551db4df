"""Bytes and clients of any kind: the right code, bounded memory, and others do not notice."""

from __future__ import annotations

import random
import resource
import socket
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
import torch

from hedgerow.serving.row_signatures import ps_model
from hedgerow.serving.server import PredictionServer
from hedgerow.wire import infer_tensors, rpc
from hedgerow.wire.codec import to_bytes
from hedgerow.wire.messages import kserve, tf_serving

from .raw_http2 import HEADERS, RST_STREAM, RawHttp2
from .serving import TIMEOUT_S, Caller, adding, host_tables, outputs_of, refused, request, serving

X = torch.tensor([[1.0, 2.0]])
REFUSALS = {
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "FAILED_PRECONDITION",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
}


@pytest.fixture(scope="module")
def server() -> Iterator[PredictionServer]:
    tables = host_tables(a=2, b=1)
    with serving(adding(1), ps_model("ps_0", tables, removes=True)) as server:
        yield server


def _is_fine(server: PredictionServer, requests: int = 1) -> bool:
    """Whether a good client is answered as always."""
    with Caller(server.address) as caller:
        answers = [outputs_of(caller.predict("m", {"x": X}))["y"] for _ in range(requests)]
    return all(torch.equal(answer, X + 1) for answer in answers)


def _methods() -> list[tuple[str, str]]:
    names = (rpc.PREDICTION_SERVICE, rpc.MODEL_SERVICE, rpc.KSERVE_SERVICE)
    return [(service, method) for service in names for method in rpc.methods(service)]


@pytest.mark.parametrize(("service", "method"), _methods())
def test_bytes_that_are_no_message(server: PredictionServer, service: str, method: str) -> None:
    with Caller(server.address, service) as caller:
        for data in (b"\xff" * 40, b"\x0a\x7f", b"\x0a\xff\xff\xff\xff\x0f", b"\x08"):
            code, text = refused(lambda sent=data: caller.call(method, sent))
            assert code == "INVALID_ARGUMENT"
            assert "bytes are no" in text
    assert _is_fine(server)


def test_a_method_that_is_not_there(server: PredictionServer) -> None:
    with grpc.insecure_channel(server.address) as channel:
        call = channel.unary_unary("/tensorflow.serving.PredictionService/Classify")
        assert refused(lambda: call(b"", timeout=TIMEOUT_S))[0] == "UNIMPLEMENTED"


@pytest.mark.parametrize("dims", [[2**31], [2**20, 2**20], [2**62, 4], [-1], [1] * 40])
def test_a_tensor_that_claims_what_it_does_not_send(
    server: PredictionServer, dims: list[int]
) -> None:
    asked = request("m", {})
    asked.inputs["x"].dtype = 1
    for size in dims:
        asked.inputs["x"].tensor_shape.dim.add(size=size)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with Caller(server.address) as caller:
        assert refused(lambda: caller.call("Predict", asked))[0] == "INVALID_ARGUMENT"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10  # KiB
    assert _is_fine(server)


def test_few_bytes_do_not_make_a_large_answer() -> None:
    wide = ps_model("ps_0", host_tables(a=512))
    asked = request("ps_0", {"id_split": torch.tensor([0, 1 << 20])}, signature="raw_lookup")
    asked.inputs["id"].dtype = 9
    asked.inputs["id"].tensor_shape.dim.add(size=1 << 20)
    asked.inputs["id"].int64_val.append(7)
    with serving(wide) as server, Caller(server.address) as caller:
        code, text = refused(lambda: caller.call("Predict", asked))
    assert (code, "ask for fewer ids" in text) == ("INVALID_ARGUMENT", True)


def test_a_message_that_claims_2_gib_is_refused_at_once(server: PredictionServer) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    raw = RawHttp2(server.address)
    raw.open(1)
    raw.send(1, (1 << 31) - 1, b"some bytes")
    assert raw.answer(1) in (HEADERS, RST_STREAM)
    raw.socket.close()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10  # KiB
    assert _is_fine(server)


def test_slow_clients_hold_nobody_up(server: PredictionServer) -> None:
    slow = [RawHttp2(server.address) for _ in range(50)]
    for raw in slow:
        for stream in (1, 3):
            raw.open(stream)
        raw.send(1, 1000, b"half of a mes")  # the other one sends nothing at all
    assert _is_fine(server, 50)
    assert server._pool.threads <= 512
    for raw in slow:
        raw.socket.close()
    assert _is_fine(server, 50)


def test_slow_calls_however_many_keep_no_other_out(server: PredictionServer) -> None:
    slow = [RawHttp2(server.address) for _ in range(6)]
    for raw in slow:
        for stream in range(1, 256, 2):  # 128 a connection; together more than all requests
            raw.open(stream)
    asked, end_s = to_bytes(request("m", {"x": X})), time.monotonic() + TIMEOUT_S
    with Caller(server.address) as caller:
        answered = 0
        while answered < 100:  # in a row: some are refused while the slow ones pile up
            answered = answered + 1 if _code(caller, "Predict", asked) == "OK" else 0
            assert time.monotonic() < end_s
    for raw in slow:
        raw.socket.close()


def test_connections_that_say_nothing_or_rubbish(server: PredictionServer) -> None:
    host, _, port = server.address.rpartition(":")
    opened = [socket.create_connection((host, int(port))) for _ in range(100)]
    for place, one in enumerate(opened):
        if place % 2:
            one.sendall(b"GET / HTTP/1.1\r\n\r\n" if place % 4 == 1 else bytes(1000))
    assert _is_fine(server)
    for one in opened:
        one.close()


def _seeds() -> list[tuple[str, str, bytes]]:
    """Good requests of every kind."""
    ids, split = torch.tensor([7, -1, 8]), torch.tensor([0, 2, 3])
    raw = {"id": ids, "id_split": split}
    rows = {"a_id": ids, "a_value": torch.ones(3, 2), "b_id": ids, "b_value": torch.ones(3, 1)}
    made: list[Any] = []
    for compat in (None, "typed"):
        made.append(request("m", {"x": X}, outputs=("y",), version=1, compat=compat))
        made.append(request("ps_0", raw, signature="raw_lookup", compat=compat))
        made.append(request("ps_0", {"a": ids, "b": ids}, signature="lookup", compat=compat))
        made.append(request("ps_0", rows, signature="hashtable_assign", compat=compat))
        flat = {**raw, "flat_value": torch.ones(5)}
        made.append(request("ps_0", flat, signature="ps_0/raw_assign", compat=compat))
    found = [(rpc.PREDICTION_SERVICE, "Predict", to_bytes(one)) for one in made]
    metadata = tf_serving.GetModelMetadataRequest(metadata_field=["signature_def"])
    metadata.model_spec.name = "m"
    found.append((rpc.PREDICTION_SERVICE, "GetModelMetadata", to_bytes(metadata)))
    status = tf_serving.GetModelStatusRequest()
    status.model_spec.name = "m"
    found.append((rpc.MODEL_SERVICE, "GetModelStatus", to_bytes(status)))
    infer = kserve.ModelInferRequest(model_name="m", model_version="1")
    infer_tensors.write_inputs(infer, {"x": X})
    found.append((rpc.KSERVE_SERVICE, "ModelInfer", to_bytes(infer)))
    about = kserve.ModelMetadataRequest(name="m")
    return [*found, (rpc.KSERVE_SERVICE, "ModelMetadata", to_bytes(about))]


def _changed(data: bytes, dice: random.Random) -> bytes:
    """The bytes with a few flipped, cut out, or doubled."""
    found = bytearray(data)
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(found) or 1)
        change = dice.random()
        if change < 0.7 and found:
            found[at] ^= 1 << dice.randrange(8)
        elif change < 0.85:
            del found[at : at + dice.randint(1, 8)]
        else:
            found[at:at] = found[at : at + dice.randint(1, 8)]
    return bytes(found)


def _code(caller: Caller, method: str, data: bytes) -> str:
    try:
        caller.call(method, data)
    except grpc.RpcError as error:
        return error.code().name  # type: ignore[attr-defined]
    return "OK"


def _fuzz(server: PredictionServer, seconds_s: float, seed: int) -> int:
    """Sends changed requests; how many were answered."""
    dice, answered, seeds = random.Random(seed), 0, _seeds()
    callers = {service: Caller(server.address, service) for service, _, _ in seeds}
    for service, method, data in seeds:  # each is good as it is
        callers[service].call(method, data)
    end_s = time.monotonic() + seconds_s
    while time.monotonic() < end_s:
        service, method, data = dice.choice(seeds)
        sent = _changed(data, dice)
        code = _code(callers[service], method, sent)
        assert code in {"OK", *REFUSALS}, (code, method, sent.hex())
        answered += code == "OK"
    for caller in callers.values():
        caller.channel.close()
    return answered


def test_changed_bytes_are_answered_or_refused(server: PredictionServer) -> None:
    assert _fuzz(server, 5.0, 1) > 0
    assert server.registry.counters.read("internal_errors") == 0
    assert _is_fine(server)


@pytest.mark.long
def test_changed_bytes_are_answered_or_refused_for_long(server: PredictionServer) -> None:
    assert _fuzz(server, 60.0, 2) > 0
    assert server.registry.counters.read("internal_errors") == 0
    assert _is_fine(server)
