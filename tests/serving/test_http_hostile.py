"""The REST twin against clients that are slow, many, too large, or hide a request in another."""

from __future__ import annotations

import json
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPConnection

import pytest

from hedgerow.serving.http_server import HttpLimits
from hedgerow.serving.registry import Registry
from hedgerow.serving.rest import RestServer

from .models import demo

LIMITS = HttpLimits(connections=8, idle_s=20, head_s=1.0)
JSON = b"Host: localhost\r\nContent-Type: application/json\r\n"
POST = b"POST /v1/models/demo:predict HTTP/1.1\r\n" + JSON
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
HIDDEN = b"GET /v1/models/demo HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    registry = Registry()
    registry.add(demo(3))
    with RestServer(registry, limits=LIMITS) as server:
        yield server.address
    registry.close()


def connect(address: str) -> socket.socket:
    host, port = address.split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def to_the_end(connection: socket.socket) -> bytes:
    """What comes until the server closes."""
    found = b""
    try:
        while part := connection.recv(1 << 16):
            found += part
    except ConnectionError:  # it closed with bytes of ours unread
        pass
    return found


def raw(address: str, data: bytes) -> bytes:
    with connect(address) as connection:
        connection.sendall(data)
        return to_the_end(connection)


def is_fine(address: str) -> bool:
    return b" 200 " in raw(
        address, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )


@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(HIDDEN),
        GET + b"Content-Length: 0\r\nContent-Length: 9\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length : %d\r\n\r\n" % len(HIDDEN),
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nno colon\r\nContent-Length: 9\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\rContent-Length: 0\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n Host: localhost\r\n\r\n",
        POST + b"Content-Length: 2\r\nContent-Length: 44\r\n\r\n{}",
        POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    ],
)
def test_a_request_hidden_in_another_is_not_answered(served: str, head: bytes) -> None:
    found = raw(served, head + HIDDEN)
    assert found.startswith(b"HTTP/1.1 400 ")
    assert found.count(b"HTTP/1.1") == 1
    assert b"AVAILABLE" not in found
    assert is_fine(served)


@pytest.mark.parametrize(
    ("first", "status"),
    [
        (b"GET http://[ HTTP/1.1", 400),
        (b"GET //[ HTTP/1.1", 404),
        (b"GET /v1/models/..%2f..%2fetc HTTP/1.1", 404),
        (b"GET /v1/models/%00%ff HTTP/1.1", 404),
        (b"DELETE /v1/models/demo HTTP/1.1", 501),
        (b"HEAD /healthz HTTP/1.1", 501),
        (b"GET /healthz HTTP/9.9", 505),
        (b"rubbish", 400),
    ],
)
def test_odd_first_lines_have_an_answer(served: str, first: bytes, status: int) -> None:
    found = raw(served, first + b"\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert found.startswith(b"HTTP/1.1 %d " % status)
    body = found.partition(b"\r\n\r\n")[2]
    assert not body if first.startswith(b"HEAD") else json.loads(body)["error"]


def test_a_head_has_a_length(served: str) -> None:
    lines = b"".join(b"X-%d: %s\r\n" % (i, b"a" * 60_000) for i in range(99))
    found = raw(served, b"GET /healthz HTTP/1.1\r\n" + lines[:200_000])
    assert not found or b" 431 " in found  # nothing: the rest of it came after the answer
    assert b" 431 " in raw(served, b"GET /healthz HTTP/1.1\r\n" + lines[:65_600])
    assert b" 431 " in raw(served, b"GET /healthz HTTP/1.1\r\n" + b"a: b\r\n" * 200)
    assert is_fine(served)


def test_a_head_has_a_time_however_it_drips(served: str) -> None:
    with connect(served) as connection:
        ended = threading.Event()
        drips = 0

        def drip() -> None:
            nonlocal drips
            while not ended.wait(0.1):
                try:
                    connection.sendall(b"a")
                    drips += 1
                except OSError:
                    return

        thread = threading.Thread(target=drip)
        connection.sendall(b"GET /healthz HTTP/1.1\r\nX: ")
        thread.start()
        assert to_the_end(connection) == b""
        ended.set()
        thread.join(60)
    assert drips > 2


def test_slow_clients_however_many_keep_no_other_out(served: str) -> None:
    slow = [connect(served) for _ in range(3 * LIMITS.connections)]
    try:
        for connection in slow:
            connection.sendall(POST + b"Content-Length: 9\r\n\r\n{")
        assert is_fine(served)
        assert to_the_end(slow[0]) == b""  # it waited longest
    finally:
        for connection in slow:
            connection.close()


def test_a_connection_in_use_is_kept(served: str) -> None:
    kept = HTTPConnection(served, timeout=60)
    kept.connect()
    sock = kept.sock
    for _ in range(3):
        with ExitStack() as others:
            for _ in range(LIMITS.connections - 1):
                others.enter_context(connect(served))
            kept.request("GET", "/healthz")
            assert kept.getresponse().read() == b'{"status": "SERVING"}'
    assert kept.sock is sock
    kept.close()


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b'{"signature_name": "\\ud800", "inputs": {}}', "no text"),
        (b'{"inputs": {"\\ud800": [1]}}', "no text"),
        (b'{"inputs": ' + b"[" * 900 + b"]" * 900 + b"}", "nested too deeply"),
        (b'{"inputs": ' + b"9" * 5000 + b"}", "JSON Parse error"),
        (b'{"inputs": [{"a": 1}]}', "numbers"),
    ],
)
def test_odd_bodies_are_the_clients_mistake(served: str, body: bytes, word: str) -> None:
    head = POST + b"Connection: close\r\nContent-Length: %d\r\n\r\n"
    found = raw(served, head % len(body) + body)
    assert found.startswith(b"HTTP/1.1 400 ")
    assert word in found.decode()


def test_a_long_string_among_numbers_takes_no_memory(served: str) -> None:
    body = json.dumps({"inputs": ["a" * 300_000, *[0] * 3000]}).encode()  # 3.6 GB as an array
    head = POST + b"Connection: close\r\nContent-Length: %d\r\n\r\n"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert raw(served, head % len(body) + body).startswith(b"HTTP/1.1 400 ")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10  # KiB
