"""A prediction server of plain grpcio handlers and bytes, with nothing of ours in it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc

Answer = Callable[[bytes, Any], bytes]
PREDICT = "/tensorflow.serving.PredictionService/Predict"


class PlainServer:
    """Keeps the bytes of every request, and answers what it is told."""

    def __init__(self, answer: Answer, path: str = PREDICT, options: Any = None) -> None:
        self.requests: list[bytes] = []
        self.cancelled = threading.Event()
        self._answer = answer
        service, method = path.strip("/").split("/")
        handler = grpc.unary_unary_rpc_method_handler(self._serve)
        self._server = grpc.server(ThreadPoolExecutor(8), options=options)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {method: handler}),)
        )
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def _serve(self, request: bytes, context: Any) -> bytes:
        self.requests.append(request)
        context.add_callback(self.cancelled.set)
        return self._answer(request, context)

    def stop(self) -> None:
        self._server.stop(None).wait()


@contextmanager
def plain_server(answer: Answer, path: str = PREDICT, options: Any = None) -> Iterator[PlainServer]:
    server = PlainServer(answer, path, options)
    try:
        yield server
    finally:
        server.stop()


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, content: bytes) -> bytes:
    """A length-delimited field."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def fields(data: bytes) -> dict[int, list[Any]]:
    """The fields of a message, undecoded: bytes, or numbers."""
    found: dict[int, list[Any]] = {}
    place = 0

    def number() -> int:
        nonlocal place
        value, shift = 0, 0
        while True:
            byte = data[place]
            place += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while place < len(data):
        tag = number()
        if tag & 7 == 0:
            found.setdefault(tag >> 3, []).append(number())
        else:
            assert tag & 7 == 2
            length = number()
            found.setdefault(tag >> 3, []).append(data[place : place + length])
            place += length
    return found


def float_tensor(shape: list[int], content: bytes) -> bytes:
    """A TensorProto of float32 with raw content."""
    dims = b"".join(field(2, b"\x08" + varint(size)) for size in shape)
    return b"\x08\x01" + field(2, dims) + field(4, content)


def response(outputs: dict[str, bytes]) -> bytes:
    """A PredictResponse."""
    return b"".join(
        field(1, field(1, name.encode()) + field(2, tensor)) for name, tensor in outputs.items()
    )
