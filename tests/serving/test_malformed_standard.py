"""Health and reflection: malformed messages and idle clients harm nobody, and servers end."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
import torch
from torch import nn

from hedgerow.monolith.distributed_serving_ops import DummySyncServer
from hedgerow.serving.export import export
from hedgerow.serving.server import PredictionServer

from .raw_http2 import DATA, END_STREAM, HEADERS, NO_WINDOW, RawHttp2, frame
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


def test_the_server_for_tests_of_pushes_takes_500_malformed_messages_too() -> None:
    with DummySyncServer("localhost:0") as server:
        address = f"localhost:{int(server.get_port())}"
        for path in (HEALTH, WATCH, REFLECTION):
            with grpc.insecure_channel(address) as channel:
                assert _codes(channel, path, 500) == {"INVALID_ARGUMENT"}
                answer = channel.unary_unary(HEALTH)(b"", timeout=TIMEOUT_S)
                assert answer == b"\x08\x01"  # SERVING


def test_watchers_that_read_nothing_stop_nobody() -> None:
    """No byte of an answer fits into what they take, so each answer to them waits for ever."""
    with serving(adding(1)) as server:
        raw = RawHttp2(server.address, NO_WINDOW)
        for number in range(20):
            raw.open(2 * number + 1, WATCH)
            empty = struct.pack(">BI", 0, 0)
            raw.socket.sendall(frame(DATA, END_STREAM, 2 * number + 1, empty))
        with grpc.insecure_channel(server.address) as channel:
            for _ in range(20):
                watching = channel.unary_stream(WATCH)(b"", timeout=TIMEOUT_S)
                assert next(watching) == b"\x08\x01"
                watching.cancel()
            server.registry.remove("m")
            assert channel.unary_unary(HEALTH)(b"", timeout=TIMEOUT_S) == b"\x08\x02"
        stopping = threading.Thread(target=server.stop, args=(0.1,), daemon=True)
        stopping.start()
        stopping.join(TIMEOUT_S)
        assert not stopping.is_alive()
        raw.socket.close()


def test_watchers_come_and_go_while_others_do(server: PredictionServer) -> None:
    """grpcio's own servicer stopped for ever where one left while another was answered."""
    failed: list[str] = []

    def watch() -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(server.address, options=options) as channel:
            for _ in range(200):
                try:
                    watching = channel.unary_stream(WATCH)(b"\x0a\x01?", timeout=TIMEOUT_S)
                    assert next(watching) == b"\x08\x03"  # SERVICE_UNKNOWN
                    watching.cancel()
                except grpc.RpcError as error:
                    failed.append(str(error))
                    return

    threads = [threading.Thread(target=watch) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_names_of_unknown_services_are_not_kept(server: PredictionServer) -> None:
    with grpc.insecure_channel(server.address) as channel:
        tracemalloc.start()
        for number in range(200):
            name = b"%05d" % number * 10_000
            data = b"\x0a" + bytes([len(name) & 127 | 128, len(name) >> 7 & 127 | 128])
            data += bytes([len(name) >> 14]) + name
            watching = channel.unary_stream(WATCH)(data, timeout=TIMEOUT_S)
            assert next(watching) == b"\x08\x03"
            watching.cancel()
        kept, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert kept < 200 * 50_000 / 4
        with pytest.raises(grpc.RpcError, match="at most 65536"):
            channel.unary_unary(HEALTH)(b"\x0a" + b"\x80\x80\x40" + b"a" * (1 << 20), timeout=60)


@pytest.mark.parametrize("path", [WATCH, REFLECTION])
def test_calls_that_stay_open_keep_no_other_out(server: PredictionServer, path: str) -> None:
    """More than a server takes at a time, over as many connections as they need."""
    raws = [RawHttp2(server.address) for _ in range(5)]
    for raw in raws:
        for number in range(120):
            raw.open(2 * number + 1, path)
            if path == WATCH:
                empty = struct.pack(">BI", 0, 0)
                raw.socket.sendall(frame(DATA, END_STREAM, 2 * number + 1, empty))
    end_s = time.monotonic() + TIMEOUT_S
    with Caller(server.address) as caller:
        for _ in range(5):
            while True:  # those of the last moment are on their way to being ended
                try:
                    found = outputs_of(caller.predict("m", {"x": X}))["y"]
                    break
                except grpc.RpcError:
                    assert time.monotonic() < end_s, "no request is let in"
                    time.sleep(0.01)
            assert torch.equal(found, X + 1)
    for raw in raws:
        raw.socket.close()


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
