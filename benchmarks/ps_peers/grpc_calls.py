"""grpcio with raw bytes: one message there and one back, or the answer as a stream of chunks."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from ..peers.subject import serve
from .asked import SERVER, SERVERS, Asked, ShardRows, servers_of, started

CHUNK_BYTES = 2**20  # of a stream; 256 KiB to 4 MiB were tried
_OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
_UNARY, _STREAM = "/rows/Lookup", "/rows/Stream"


class GrpcUnary(Asked):
    """Requests are under way at once as futures."""

    packages: ClassVar[tuple[str, ...]] = ("grpcio",)

    def fill(self) -> None:
        """Servers of this file."""
        import grpc

        module = "benchmarks.ps_peers.grpc_calls"
        addresses = self.stack.enter_context(started(servers_of(module, self.work)))
        channels = [grpc.insecure_channel(address, options=_OPTIONS) for address in addresses]
        for channel in channels:
            self.stack.callback(channel.close)
        self.connect(channels)

    def connect(self, channels: list[Any]) -> None:
        """The calls."""
        self._calls = [channel.unary_unary(_UNARY) for channel in channels]

    def ask(self, shares: Sequence[Tensor], outs: Sequence[Tensor]) -> None:
        """All under way, then each into its place."""
        waiting = [
            call.future(share.numpy().tobytes())
            for call, share in zip(self._calls, shares, strict=True)
        ]
        for one, out in zip(waiting, outs, strict=True):
            copy_into(one.result(), out)


def copy_into(data: bytes, out: Tensor) -> None:
    """Bytes of rows to their place."""
    out.numpy()[:] = np.frombuffer(data, np.float32)


def answer_for_ever(folder: Path, server: int, servers: int) -> None:
    """The server of both forms."""
    import grpc

    rows = ShardRows(folder, server, servers)

    def lookup(request: bytes, context: Any) -> bytes:
        return bytes(rows.lookup_bytes(request))

    def stream(request: bytes, context: Any) -> Iterator[bytes]:
        found = rows.lookup_bytes(request)
        for start in range(0, found.nbytes, CHUNK_BYTES):
            yield bytes(found[start : start + CHUNK_BYTES])

    handlers = {
        "Lookup": grpc.unary_unary_rpc_method_handler(lookup),
        "Stream": grpc.unary_stream_rpc_method_handler(stream),
    }
    made = grpc.server(ThreadPoolExecutor(4), options=_OPTIONS)
    made.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("rows", handlers),))
    port = made.add_insecure_port("127.0.0.1:0")
    made.start()
    sys.stdout.write(f"127.0.0.1:{port}\n")
    sys.stdout.flush()
    made.wait_for_termination()


class GrpcStream(GrpcUnary):
    """A chunk is copied to its place while the next one comes; one thread a server."""

    def connect(self, channels: list[Any]) -> None:
        """The calls, and who reads them."""
        self._calls = [channel.unary_stream("/rows/Stream") for channel in channels]
        self._pool = self.stack.enter_context(ThreadPoolExecutor(SERVERS))

    def ask(self, shares: Sequence[Tensor], outs: Sequence[Tensor]) -> None:
        """Every stream is read to its end."""
        triples = list(zip(self._calls, shares, outs, strict=True))
        list(self._pool.map(lambda triple: _read(*triple), triples))


def _read(call: Any, share: Tensor, out: Tensor) -> None:
    at = 0
    for chunk in call(share.numpy().tobytes()):
        n = len(chunk) // 4
        copy_into(chunk, out[at : at + n])
        at += n


if __name__ == "__main__":
    if sys.argv[1] == SERVER:
        answer_for_ever(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    else:
        serve(GrpcUnary, GrpcStream)
