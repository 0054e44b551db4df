"""PredictionClient against servers of plain grpcio handlers and bytes."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import grpc
import pytest
import torch

from hedgerow.serving.channels import ClientTls
from hedgerow.serving.client import PredictionClient, SignatureInfo, VersionStatus
from hedgerow.serving.model import ServingError
from hedgerow.wire.tensors import Compat

from .plain_server import (
    PREDICT,
    Answer,
    PlainServer,
    field,
    fields,
    float_tensor,
    response,
    varint,
)

STATUS = "/tensorflow.serving.ModelService/GetModelStatus"
METADATA = "/tensorflow.serving.PredictionService/GetModelMetadata"
IDS = {"id": torch.tensor([3, 4])}


@contextmanager
def asking(
    answer: Answer, path: str = PREDICT, options: Any = None, compat: Compat = None
) -> Iterator[tuple[PlainServer, PredictionClient]]:
    server = PlainServer(answer, path, options)
    try:
        with PredictionClient(server.address, compat=compat) as client:
            yield server, client
    finally:
        server.stop()


def ones(count: int) -> bytes:
    return response({"y": float_tensor([count], struct.pack("<f", 1.0) * count)})


def test_outputs_come_by_name_and_the_request_carries_raw_content() -> None:
    with asking(lambda *_: ones(2)) as (server, client):
        found = client.predict("entry", "sig", IDS, outputs=["y"], version=5)
    assert list(found) == ["y"]
    assert found["y"].tolist() == [1.0, 1.0]
    request = fields(server.requests[0])
    assert fields(request[1][0]) == {1: [b"entry"], 2: [b"\x08\x05"], 3: [b"sig"]}
    assert request[3] == [b"y"]
    assert fields(fields(request[2][0])[2][0])[4] == [struct.pack("<2q", 3, 4)]


def test_typed_values_where_asked_and_no_version_where_none() -> None:
    with asking(lambda *_: ones(1), compat="typed") as (server, client):
        client.predict("entry", "", IDS)
    request = fields(server.requests[0])
    assert fields(request[1][0]) == {1: [b"entry"]}
    assert fields(fields(request[2][0])[2][0])[10] == [b"\x03\x04"]


def test_messages_are_larger_than_the_limit_of_grpc() -> None:
    count = 2 << 20  # 8 MiB there and back; gRPC alone stops at 4
    wide = {"x": torch.zeros(count)}
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with asking(lambda *_: ones(count), options=options) as (_, client):
        found = client.predict("entry", "", wide, timeout=60)["y"]
    assert found.shape == (count,)
    assert bool((found == 1).all())


def refuse(_: bytes, context: Any) -> NoReturn:
    context.abort(grpc.StatusCode.NOT_FOUND, "Servable not found for request: Latest(x)")


def test_error_has_the_code_and_the_text_of_the_server() -> None:
    with (
        asking(refuse) as (_, client),
        pytest.raises(ServingError, match="Servable not found") as caught,
    ):
        client.predict("x", "", IDS)
    assert caught.value.code == "NOT_FOUND"


def test_timeout_is_a_deadline() -> None:
    release = threading.Event()

    def slow(*_: Any) -> bytes:
        release.wait(60)
        return ones(1)

    with asking(slow) as (_, client):
        with pytest.raises(ServingError) as caught:
            client.predict("x", "", IDS, timeout=0.1)
        release.set()
    assert caught.value.code == "DEADLINE_EXCEEDED"


def test_closed_client_refuses() -> None:
    client = PredictionClient("127.0.0.1:1")
    client.close()
    with pytest.raises(ServingError) as caught:
        client.predict("x", "", IDS)
    assert caught.value.code == "CANCELLED"


def test_status_of_versions() -> None:
    good = b"\x08\x07\x10\x1e"  # version 7, AVAILABLE
    bad = b"\x08\x08\x10\x32" + field(3, b"\x08\x05" + field(2, b"gone"))
    with asking(lambda *_: field(1, good) + field(1, bad), STATUS) as (server, client):
        found = client.model_status("entry", 7)
    assert found == [
        VersionStatus(7, "AVAILABLE", "OK", ""),
        VersionStatus(8, "END", "NOT_FOUND", "gone"),
    ]
    assert fields(fields(server.requests[0])[1][0]) == {1: [b"entry"], 2: [b"\x08\x07"]}


def metadata_of(signature: bytes) -> bytes:
    packed = field(1, field(1, b"lookup") + field(2, signature))
    url = b"type.googleapis.com/tensorflow.serving.SignatureDefMap"
    entry = field(1, b"signature_def") + field(2, field(1, url) + field(2, packed))
    return field(2, entry)


def test_metadata_gives_signatures() -> None:
    any_size = b"\x08" + varint((1 << 64) - 1)
    ids = b"\x10\x09" + field(3, field(2, any_size))
    words = b"\x10\x07" + field(3, b"\x18\x01")
    signature = (
        field(1, field(1, b"id") + field(2, ids))
        + field(2, field(1, b"word") + field(2, words))
        + field(3, b"tensorflow/serving/predict")
    )
    answer = metadata_of(signature)
    with asking(lambda *_: answer, METADATA) as (server, client):
        found = client.metadata("entry")
    (info,) = found.values()
    assert isinstance(info, SignatureInfo)
    assert (info.inputs["id"].dtype, info.inputs["id"].shape) == (torch.int64, (None,))
    assert (info.outputs["word"].dtype, info.outputs["word"].shape) == (None, None)
    assert fields(server.requests[0])[2] == [b"signature_def"]


@pytest.mark.parametrize("wrong", [0, -1, float("nan")])
def test_timeout_is_above_0(wrong: float) -> None:
    with PredictionClient("127.0.0.1:1") as client, pytest.raises(ValueError, match="timeout"):
        client.predict("x", "", IDS, timeout=wrong)


def test_model_has_a_name_and_tls_is_whole() -> None:
    with PredictionClient("127.0.0.1:1") as client, pytest.raises(ValueError, match="model is ''"):
        client.predict("", "", IDS)
    with pytest.raises(ValueError, match="come together"):
        ClientTls(certificate=b"x")
