"""torch.rpc: tensors there and tensors back, over TensorPipe."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor
from torch.distributed import rpc

from ..peers.subject import serve
from .asked import SERVER, SERVERS, Asked, ShardRows, started

_MODULE = "benchmarks.ps_peers.torch_rpc"


class TorchRpc(Asked):
    """The client is the last rank; all meet in a file. It makes the rows of every server there."""

    packages: ClassVar[tuple[str, ...]] = ("torch",)

    def fill(self) -> None:
        """Servers of this file."""
        meeting = f"file://{self.stack.enter_context(tempfile.TemporaryDirectory())}/meeting"
        commands = [[_MODULE, SERVER, str(i), meeting] for i in range(SERVERS)]
        self.stack.enter_context(started(commands))
        _join("client", SERVERS, meeting)
        self._rows = [
            rpc.remote(f"server{i}", ShardRows, (self.work.folder, i, SERVERS))
            for i in range(SERVERS)
        ]

    def ask(self, shares: Sequence[Tensor], outs: Sequence[Tensor]) -> None:
        """All under way, then each into its place."""
        waiting: list[Any] = [
            rows.rpc_async().lookup(share) for rows, share in zip(self._rows, shares, strict=True)
        ]
        for one, out in zip(waiting, outs, strict=True):
            out.copy_(one.wait())


def _join(name: str, rank: int, meeting: str) -> None:
    options = rpc.TensorPipeRpcBackendOptions(init_method=meeting)
    rpc.init_rpc(name, rank=rank, world_size=SERVERS + 1, rpc_backend_options=options)


if __name__ == "__main__":
    if sys.argv[1] == SERVER:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        _join(f"server{sys.argv[2]}", int(sys.argv[2]), sys.argv[3])
        rpc.shutdown()  # when all are done; it is killed before
    else:
        serve(TorchRpc)
