"""The REST twin over real sockets."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import pytest

from hedgerow.serving.http_server import HttpLimits
from hedgerow.serving.model import Model, Signature, Tensors
from hedgerow.serving.registry import Registry
from hedgerow.serving.rest import RestServer

from .models import FLOATS, demo

LIMITS = HttpLimits(body_bytes=10_000, all_bodies_bytes=15_000, connections=3, idle_s=5, body_s=5)


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    registry = Registry()
    registry.add(demo(3))
    registry.add(demo(4))
    registry.add(demo(1, "group:ps_0"))
    registry.set_labels("demo", {"stable": 3})
    with RestServer(registry, limits=LIMITS) as server:
        yield server.address
    registry.close()


def ask(address: str, method: str, path: str, plain: Any = None) -> tuple[int, Any]:
    body = plain if isinstance(plain, bytes | None) else json.dumps(plain).encode()
    connection = HTTPConnection(address, timeout=60)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read()
        return response.status, (
            json.loads(text) if response.getheader("Content-Type") == "application/json" else text
        )
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"instances": [1, 2.5]}, {"predictions": [2.0, 5.0]}),
        ({"inputs": [1, 2.5]}, {"outputs": [2.0, 5.0]}),
        ({"inputs": {"x": [1]}}, {"outputs": [2.0]}),
        ({"instances": [{"x": 1}, {"x": 2}]}, {"predictions": [2.0, 4.0]}),
        ({"inputs": [], "signature_name": ""}, {"outputs": []}),
        (
            {"signature_name": "both", "instances": [{"x": 0.5, "id": 2}, {"x": 1, "id": 3}]},
            {"predictions": [{"sum": 2.5, "id": 2}, {"sum": 4.0, "id": 3}]},
        ),
        (
            {"signature_name": "both", "inputs": {"x": [0.5], "id": [2]}},
            {"outputs": {"sum": [2.5], "id": [2]}},
        ),
        (
            {"signature_name": "matrix", "inputs": [[1, 2], [3, 4]]},
            {"outputs": {"y": [[2, 1], [4, 3]], "total": 10}},
        ),
        ({"signature_name": "ids", "inputs": [2**61 + 1]}, {"outputs": [2**62 + 2]}),
        ({"signature_name": "flags", "instances": [True]}, {"predictions": [False]}),
    ],
)
def test_both_forms(served: str, body: Any, expected: Any) -> None:
    assert ask(served, "POST", "/v1/models/demo:predict", body) == (200, expected)


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"{", "JSON Parse error"),
        (b"[" * 5000, "JSON Parse error"),
        (b"[1]", "one JSON object"),
        ({}, "either"),
        ({"instances": [1], "inputs": [1]}, "either"),
        ({"instances": []}, "at least one"),
        ({"instances": 3}, "at least one"),
        ({"instances": [{"x": 1}, {"y": 1}]}, "instance 1"),
        ({"instances": [[1], [1, 2]]}, "different lengths"),
        ({"instances": [[1, 2]]}, "shape"),
        ({"instances": ["a"]}, "numbers"),
        ({"instances": [None]}, "numbers"),
        ({"inputs": {"z": [1]}}, "alias not found"),
        ({"inputs": {}}, "input size does not match signature:"),
        ({"signature_name": 3, "inputs": [1]}, "signature_name is 3"),
        ({"signature_name": "none", "inputs": [1]}, 'Serving signature key "none" not found.'),
        ({"signature_name": "both", "inputs": [1]}, "by name"),
        ({"signature_name": "ids", "inputs": [1.5]}, "fit torch.int64"),
        ({"signature_name": "ids", "inputs": [2**63]}, "outside"),
        ({"signature_name": "flags", "inputs": [1]}, "fit torch.bool"),
        ({"signature_name": "matrix", "instances": [[1, 2]]}, "by columns"),
    ],
)
def test_wrong_bodies_are_refused_with_a_reason(served: str, body: Any, word: str) -> None:
    status, answer = ask(served, "POST", "/v1/models/demo:predict", body)
    assert status == 400
    assert word in answer["error"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/models/demo/versions/3:predict", 200),
        ("/v1/models/demo/labels/stable:predict", 200),
        ("/v1/models/group:ps_0:predict", 200),
        ("/v1/models/group%3Aps_0:predict", 200),
        ("/v1/models/demo/versions/9:predict", 404),
        ("/v1/models/other:predict", 404),
        ("/v1/models/demo/labels/none:predict", 400),
        ("/v1/models/demo", 405),
        ("/v1/models//", 404),
        ("/v2", 404),
    ],
)
def test_paths(served: str, path: str, status: int) -> None:
    found, answer = ask(served, "POST", path, {"instances": [1]})
    assert found == status
    assert ("error" in answer) == (status != 200)


def test_what_fails_inside_is_an_internal_error(
    served: str, caplog: pytest.LogCaptureFixture
) -> None:
    body = {"signature_name": "broken", "inputs": [1]}
    status, answer = ask(served, "POST", "/v1/models/demo:predict", body)
    assert status == 500
    assert "the disk is on fire" in answer["error"]
    told = ask(served, "GET", "/metrics")[1].decode()
    assert 'hedgerow_serving_events_total{event="internal_errors"}' in told
    assert "the disk is on fire" in caplog.text


def test_status_and_metadata(served: str) -> None:
    status, answer = ask(served, "GET", "/v1/models/demo/versions/3")
    assert status == 200
    assert answer == {
        "model_version_status": [
            {
                "version": "3",
                "state": "AVAILABLE",
                "status": {"error_code": "OK", "error_message": ""},
            }
        ]
    }
    assert len(ask(served, "GET", "/v1/models/demo")[1]["model_version_status"]) == 2
    assert ask(served, "GET", "/v1/models/other")[0] == 404
    status, answer = ask(served, "GET", "/v1/models/demo/metadata")
    assert status == 200
    assert answer["model_spec"] == {"name": "demo", "signature_name": "", "version": "4"}
    described = answer["metadata"]["signature_def"]["signature_def"]["both"]
    assert described["inputs"]["id"]["dtype"] == "DT_INT64"
    assert described["inputs"]["id"]["tensor_shape"]["dim"][0]["size"] == "-1"
    assert described["method_name"] == "tensorflow/serving/predict"


def test_health_follows_the_models_and_the_drain() -> None:
    registry = Registry()
    with RestServer(registry) as server:
        assert ask(server.address, "GET", "/healthz") == (503, {"status": "NOT_SERVING"})
        registry.add(demo())
        assert ask(server.address, "GET", "/healthz") == (200, {"status": "SERVING"})
        server.drain()
        assert ask(server.address, "GET", "/healthz")[0] == 503
        assert ask(server.address, "POST", "/v1/models/demo:predict", {"inputs": [1]})[0] == 200


@pytest.mark.parametrize("path", ["/metrics", "/monitoring/prometheus/metrics"])
def test_metrics_count_requests(path: str) -> None:
    registry = Registry()
    registry.add(demo())
    with RestServer(registry) as server:
        for body in ({"inputs": [1, 2]}, {"inputs": "a"}):
            ask(server.address, "POST", "/v1/models/demo:predict", body)
        ask(server.address, "POST", "/v1/models/ghost:predict", {"inputs": [1]})
        text = ask(server.address, "GET", path)[1].decode()
    lines = text.splitlines()
    shared = 'hedgerow_serving_requests_total{code="%s",method="/v1/models:predict",model="%s"'
    for code, model in (("OK", "demo"), ("INVALID_ARGUMENT", "demo"), ("NOT_FOUND", "")):
        (line,) = [line for line in lines if line.startswith(shared % (code, model))]
        assert line.endswith(" 1.0")
    assert 'hedgerow_serving_loaded_version{model="demo",version="3"} 1.0' in lines
    assert 'hedgerow_serving_request_rows_sum{model="demo"} 2.0' in lines
    assert "ghost" not in text


def raw(address: str, data: bytes) -> bytes:
    """The answer to bytes; nothing where the connection is closed at once."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(data)
        try:
            return connection.recv(4096)
        except ConnectionError:
            return b""


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"Content-Length: 10001\r\n", b" 413 "),
        (b"Content-Length: 9999999999999999999999\r\n", b" 413 "),
        (b"Content-Length: -5\r\n", b" 411 "),
        (b"Transfer-Encoding: chunked\r\n", b" 411 "),
        (b"", b" 411 "),
    ],
)
def test_bodies_are_bounded(served: str, head: bytes, status: bytes) -> None:
    start = b"POST /v1/models/demo:predict HTTP/1.1\r\nHost: localhost\r\n"
    assert status in raw(served, start + head + b"\r\n")
    assert ask(served, "GET", "/healthz")[0] == 200


def test_no_http_at_all_harms_nobody(served: str) -> None:
    assert b" 400 " in raw(served, b"\x16\x03\x01 \xff\xfe\r\n\r\n")
    assert b" 414 " in raw(served, b"GET /" + b"a" * 70_000)
    assert ask(served, "GET", "/healthz")[0] == 200


def test_a_slow_body_ends() -> None:
    limits = HttpLimits(idle_s=0.2, body_s=60)
    with RestServer(Registry(), limits=limits) as server:
        head = b"POST /v1/models/demo:predict HTTP/1.1\r\nHost: localhost\r\n"
        head += b"Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
        assert raw(server.address, head) == b""


def test_stop_waits_for_requests_under_way() -> None:
    begun, release = threading.Event(), threading.Event()

    def slow(inputs: Tensors) -> Tensors:
        begun.set()
        release.wait(60)
        return inputs

    registry = Registry()
    registry.add(
        Model("slow", 1, {"serving_default": Signature({"x": FLOATS}, {"x": FLOATS}, slow)})
    )
    server = RestServer(registry).start()
    found: list[Any] = []
    body = {"inputs": [1]}
    thread = threading.Thread(
        target=lambda: found.append(ask(server.address, "POST", "/v1/models/slow:predict", body))
    )
    thread.start()
    assert begun.wait(60)
    stopper = threading.Thread(target=server.stop, args=(60,))
    stopper.start()
    release.set()
    thread.join(60)
    stopper.join(60)
    assert found == [(200, {"outputs": [1.0]})]
    with pytest.raises(ConnectionError):
        ask(server.address, "GET", "/healthz")
