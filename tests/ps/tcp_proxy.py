"""Stands between clients and a server as a bad network does, in bytes: it knows no messages.

Connections are cut, some after half of what was to pass; bytes come late, or twice; a connection is
played again to the server by a stranger who has recorded it.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

_PIECE = 65536
_RECORDED = 2**20  # bytes of a connection that are kept to be played again


class TcpProxy:
    """Clients connect to `address`. `order` asks for a fault, which the next bytes meet.

    `direction` is "in" (to the server), "out" (answers) or "any".
    """

    def __init__(self, server: str, seed: int = 0) -> None:
        host, _, port = server.removeprefix("tcp://").partition(":")
        self._server = host, int(port)
        self._random = random.Random(seed)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listening.getsockname()[1]}"
        self.done: Counter[str] = Counter()
        self.refuses = False  # whether new connections are ended at once
        self.accepted = 0
        self._lock = threading.Lock()
        self._order: tuple[str, str] | None = None
        self._open: set[socket.socket] = set()
        self._faults: dict[str, Callable[[socket.socket, socket.socket, bytes], bool]] = {
            "cut": self._cut,
            "half": self._half,
            "delay": self._delay,
            "twice": self._twice,
            "stall": self._stall,
        }
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    # ---- orders

    def order(self, fault: str, direction: str = "any") -> None:
        """The next bytes of that direction meet the fault."""
        with self._lock:
            self._order = fault, direction

    def is_done(self) -> bool:
        """Whether the last order was carried out."""
        return self._order is None

    def cut_all(self) -> None:
        """Ends all connections that are open."""
        with self._lock:
            every = list(self._open)
        for one in every:
            _end(one)

    def close(self) -> None:
        self._closed = True
        self._listening.close()
        self.cut_all()

    # ---- bytes

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            self.accepted += 1
            try:
                server = socket.create_connection(self._server)
            except OSError:
                client.close()
                continue
            if self.refuses:
                client.close()
                server.close()
                continue
            with self._lock:
                self._open |= {client, server}
            recorded = bytearray()
            for args in ((client, server, "in", recorded), (server, client, "out", None)):
                threading.Thread(target=self._pass, args=args, daemon=True).start()

    def _pass(
        self, source: socket.socket, to: socket.socket, way: str, recorded: bytearray | None
    ) -> None:
        with suppress(OSError):
            while data := source.recv(_PIECE):
                if recorded is not None and len(recorded) < _RECORDED:
                    recorded += data
                fault = self._fault_for(way)
                if fault == "replay":
                    to.sendall(data)
                    self._replay(bytes(recorded or b""))
                elif fault is None:
                    to.sendall(data)
                elif not self._faults[fault](source, to, data):
                    break
        for one in (source, to):
            _end(one)
            one.close()
        with self._lock:
            self._open -= {source, to}

    def _fault_for(self, way: str) -> str | None:
        with self._lock:
            if self._order is None or self._order[1] not in ("any", way):
                return None
            fault, self._order = self._order[0], None
            self.done[fault] += 1
            self.done[f"{fault} {way}"] += 1
            return fault

    def _cut(self, source: socket.socket, to: socket.socket, data: bytes) -> bool:
        """Before the bytes, by a reset in one of two cases."""
        if self._random.random() < 0.5:
            _reset(source)
            _reset(to)
        return False

    def _half(self, source: socket.socket, to: socket.socket, data: bytes) -> bool:
        to.sendall(data[: self._random.randrange(len(data))])
        return False

    def _delay(self, source: socket.socket, to: socket.socket, data: bytes) -> bool:
        time.sleep(self._random.uniform(0.0, 0.2))
        to.sendall(data)
        return True

    def _twice(self, source: socket.socket, to: socket.socket, data: bytes) -> bool:
        to.sendall(data + data)
        return True

    def _stall(self, source: socket.socket, to: socket.socket, data: bytes) -> bool:
        """Half of the bytes pass, then nothing does, and the connection stays open."""
        to.sendall(data[: len(data) // 2])
        while not self._closed and source.recv(_PIECE):
            continue
        return False

    def _replay(self, recorded: bytes) -> None:
        """What a client has sent so far comes once more, over a connection of its own."""
        with socket.create_connection(self._server) as again:
            again.settimeout(1)
            with suppress(OSError):  # the server may end it at any byte
                for at in range(0, len(recorded), 64):  # as it came: piece by piece
                    again.sendall(recorded[at : at + 64])
                again.recv(_PIECE)


def _end(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


def _reset(one: socket.socket) -> None:
    """Ends a connection with a reset: what is on the way is lost."""
    with suppress(OSError):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        one.close()
