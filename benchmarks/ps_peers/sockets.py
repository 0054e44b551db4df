"""Plain TCP sockets, the floor: a length, then bytes, one connection a server."""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from torch import Tensor

from ..peers.subject import serve
from .asked import SERVER, SERVERS, Asked, ShardRows, servers_of, started

_LENGTH = struct.Struct("<Q")
_SMALL_BYTES = 2**16  # answers that fit into the system's buffers need no thread


class PlainSockets(Asked):
    """Large answers are read by one thread a server, so that no server waits for the other."""

    def fill(self) -> None:
        """Servers of this file."""
        module = "benchmarks.ps_peers.sockets"
        addresses = self.stack.enter_context(started(servers_of(module, self.work)))
        self._sockets = [_connected(address) for address in addresses]
        for one in self._sockets:
            self.stack.callback(one.close)
        self._pool = self.stack.enter_context(ThreadPoolExecutor(SERVERS))

    def ask(self, shares: Sequence[Tensor], outs: Sequence[Tensor]) -> None:
        """Asks all, then reads all."""
        triples = list(zip(self._sockets, shares, outs, strict=True))
        if sum(out.nbytes for out in outs) > _SMALL_BYTES:
            list(self._pool.map(lambda triple: _ask(*triple), triples))
            return
        for one, share, _ in triples:
            _send(one, share)
        for one, _, out in triples:
            _receive(one, _view(out))


def _connected(address: str) -> socket.socket:
    host, port = address.rsplit(":", 1)
    made = socket.create_connection((host, int(port)))
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def _ask(one: socket.socket, share: Tensor, out: Tensor) -> None:
    _send(one, share)
    _receive(one, _view(out))


def _send(one: socket.socket, values: Tensor | memoryview) -> None:
    view = values if isinstance(values, memoryview) else _view(values)
    one.sendall(_LENGTH.pack(view.nbytes))
    one.sendall(view)


def _receive(one: socket.socket, into: memoryview) -> None:
    (length,) = _LENGTH.unpack(_exactly(one, _LENGTH.size))
    if length != into.nbytes:
        raise RuntimeError(f"{length} bytes came where {into.nbytes} were expected")
    _fill(one, into)


def _fill(one: socket.socket, into: memoryview) -> None:
    at = 0
    while at < into.nbytes:
        got = one.recv_into(into[at:])
        if not got:
            raise RuntimeError("the other side is gone")
        at += got


def _exactly(one: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    _fill(one, memoryview(data))
    return data


def _view(values: Tensor) -> memoryview:
    return memoryview(values.numpy()).cast("B")  # pyright: ignore[reportArgumentType]


def answer_for_ever(folder: Path, server: int, servers: int) -> None:
    """The server: one client, one request at a time."""
    rows = ShardRows(folder, server, servers)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        host, port = listening.getsockname()
        sys.stdout.write(f"{host}:{port}\n")
        sys.stdout.flush()
        client, _ = listening.accept()
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            (length,) = _LENGTH.unpack(_exactly(client, _LENGTH.size))
            _send(client, rows.lookup_bytes(_exactly(client, length)))


if __name__ == "__main__":
    if sys.argv[1] == SERVER:
        answer_for_ever(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    else:
        serve(PlainSockets)
