"""grpcio with raw bytes, the answer as a stream of chunks: its best form for large answers."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from torch import Tensor

from ..peers.serve import serve
from .asked import SERVERS
from .grpc_unary import GrpcUnary, copy_into


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
    serve(GrpcStream)
