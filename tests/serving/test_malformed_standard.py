"""Malformed health and reflection messages leave no stream behind, and servers end as ever."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
import torch
from torch import nn

from hedgerow.serving.export import export
from hedgerow.serving.server import PredictionServer

from .raw_http2 import DATA, END_STREAM, HEADERS, RawHttp2, frame
from .serving import TIMEOUT_S, Caller, adding, outputs_of, serving

HEALTH, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
X = torch.tensor([[1.0, 2.0]])
BAD = (b"\xff" * 9, b"\x0a\x7f", b"\x0a\x01\xff", b"\x08")


@pytest.fixture
def server() -> Iterator[PredictionServer]:
    with serving(adding(1)) as server:
        yield server


def _codes(channel: grpc.Channel, path: str, messages: int) -> set[str]:
    """The codes of calls with malformed messages, over one connection."""
    found = set()
    streams = path != HEALTH
    for number in range(messages):
        data = BAD[number % len(BAD)]
        try:
            if path == REFLECTION:
                list(channel.stream_stream(path)(iter([data]), timeout=TIMEOUT_S))
            elif streams:
                list(channel.unary_stream(path)(data, timeout=TIMEOUT_S))
            else:
                channel.unary_unary(path)(data, timeout=TIMEOUT_S)
            found.add("OK")
        except grpc.RpcError as error:
            found.add(error.code().name)  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("path", [HEALTH, WATCH, REFLECTION])
def test_500_malformed_messages_on_one_connection(server: PredictionServer, path: str) -> None:
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(server.address, options=options) as channel:
        assert _codes(channel, path, 500) == {"INVALID_ARGUMENT"}
        answer = channel.unary_unary(HEALTH)(b"", timeout=TIMEOUT_S)
        assert answer == b"\x08\x01"  # SERVING
    with Caller(server.address) as caller:
        assert torch.equal(outputs_of(caller.predict("m", {"x": X}))["y"], X + 1)


@pytest.mark.parametrize("path", [HEALTH, WATCH, REFLECTION])
def test_malformed_messages_of_a_client_that_never_ends_its_side(
    server: PredictionServer, path: str
) -> None:
    """By hand: 500 streams of one connection, each left half open, each answered with an end."""
    raw = RawHttp2(server.address)
    for number in range(500):
        stream = 2 * number + 1
        raw.open(stream, path)
        data = BAD[number % len(BAD)]
        raw.socket.sendall(frame(DATA, 0, stream, struct.pack(">BI", 0, len(data)) + data))
        raw.await_end(stream)
    raw.open(1001, HEALTH)
    raw.socket.sendall(frame(DATA, END_STREAM, 1001, struct.pack(">BI", 0, 0)))
    assert raw.await_end(1001) == HEADERS
    raw.socket.close()


def test_a_server_that_got_malformed_messages_ends_at_sigterm(tmp_path: Path) -> None:
    base = tmp_path / "double"
    export(nn.Linear(2, 1), base, example=torch.ones(1, 2), version=1)
    command = [sys.executable, "-m", "hedgerow", "serve", str(base), "--http", "off"]
    command += ["--grpc", "127.0.0.1:0", "--grace-s", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split()[-1]
            raws = [RawHttp2(address) for _ in range(4)]
            for raw in raws:
                for stream, path in enumerate([HEALTH, WATCH, REFLECTION] * 20):
                    raw.open(2 * stream + 1, path)
                    prefix = struct.pack(">BI", 0, 9)
                    raw.socket.sendall(frame(DATA, 0, 2 * stream + 1, prefix + b"\xff" * 9))
                    raw.await_end(2 * stream + 1)
            with grpc.insecure_channel(address) as channel:
                watching = channel.unary_stream(WATCH)(b"", timeout=TIMEOUT_S)
                assert next(iter(watching)) == b"\x08\x01"
                process.send_signal(signal.SIGTERM)
                assert process.wait(TIMEOUT_S) == 0
            for raw in raws:
                raw.socket.close()
        finally:
            process.kill()


def test_watchers_hear_of_changes_through_bytes(server: PredictionServer) -> None:
    heard: list[bytes] = []
    told = threading.Event()
    with grpc.insecure_channel(server.address) as channel:
        watching = channel.unary_stream(WATCH)(b"", timeout=TIMEOUT_S)

        def listen() -> None:
            for answer in watching:
                heard.append(answer)
                if len(heard) == 2:
                    told.set()
                    return

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        end_s = time.monotonic() + TIMEOUT_S
        while not heard:
            assert time.monotonic() < end_s
            time.sleep(0.01)
        server.registry.remove("m")
        assert told.wait(TIMEOUT_S)
    assert heard == [b"\x08\x01", b"\x08\x02"]


def test_reflection_lists_services_through_bytes(server: PredictionServer) -> None:
    from grpc_reflection.v1alpha import reflection_pb2

    request = reflection_pb2.ServerReflectionRequest(list_services="")
    with grpc.insecure_channel(server.address) as channel:
        call = channel.stream_stream(REFLECTION)
        (answer,) = list(call(iter([request.SerializeToString()]), timeout=TIMEOUT_S))
    found = reflection_pb2.ServerReflectionResponse.FromString(answer)
    names = {one.name for one in found.list_services_response.service}
    assert {"grpc.health.v1.Health", "tensorflow.serving.PredictionService"} <= names
