"""A client that writes HTTP/2 frames by hand, and so can stop anywhere."""

from __future__ import annotations

import socket
import struct

from .serving import TIMEOUT_S

PATH = "/tensorflow.serving.PredictionService/Predict"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, GOAWAY = 0, 1, 3, 4, 7
END_STREAM, END_HEADERS, ACK = 1, 4, 1
NO_WINDOW = struct.pack(">HI", 4, 0)  # a client that takes no byte of an answer


class RawHttp2:
    """One connection to a gRPC server; `settings` are those that this client states."""

    def __init__(self, address: str, settings: bytes = b"") -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0, settings))

    def open(self, stream: int, path: str = PATH) -> None:
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": "x",
            "content-type": "application/grpc",
            "te": "trailers",
        }
        block = b"".join(
            b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
            for name, value in fields.items()
        )
        self.socket.sendall(frame(HEADERS, END_HEADERS, stream, block))

    def send(self, stream: int, claimed_bytes: int, data: bytes) -> None:
        """The beginning of a message that says how long it will be."""
        prefix = struct.pack(">BI", 0, claimed_bytes)
        self.socket.sendall(frame(DATA, 0, stream, prefix + data))

    def answer(self, stream: int) -> int:
        """The kind of the first frame that answers a stream."""
        while True:
            kind, _, number = self._frame()
            if number == stream and kind in (HEADERS, RST_STREAM):
                return kind

    def await_end(self, stream: int) -> int:
        """The kind of the frame with which the server ends a stream."""
        while True:
            kind, flags, number = self._frame()
            assert kind != GOAWAY, "the server gives the connection up"
            ends = kind == RST_STREAM or (kind in (DATA, HEADERS) and flags & END_STREAM)
            if number == stream and ends:
                return kind

    def _frame(self) -> tuple[int, int, int]:
        head = self._read(9)
        size, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
        self._read(size)
        if kind == SETTINGS and not flags & ACK:
            self.socket.sendall(frame(SETTINGS, ACK, 0, b""))
        return kind, flags, int.from_bytes(head[5:], "big")

    def _read(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            part = self.socket.recv(size - len(found))
            assert part, "the server closed the connection"
            found += part
        return found


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """The bytes of a frame."""
    return (
        len(payload).to_bytes(3, "big") + bytes([kind, flags]) + struct.pack(">I", stream) + payload
    )
