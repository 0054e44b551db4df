"""Our own servers: as users start them, with CURVE, and with durability `log`."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from hedgerow.ps.curve import new_keys
from hedgerow.ps.remote_shard import RemoteShard
from hedgerow.tables.store import TableKeys

from ..peers.subject import serve
from .asked import SERVERS, TABLE, Asked, config_of, started


class OurServers(Asked):
    """As a user starts them on one machine."""

    packages: ClassVar[tuple[str, ...]] = ("hedgerow", "torch", "pyzmq")

    def options(self, server: int) -> list[str]:
        """More arguments of `hedgerow ps`."""
        return []

    def client_keys(self) -> Path | None:
        """The folder of keys, if any."""
        return None

    def fill(self) -> None:
        """Rows are assigned from here; the time of that is nobody's."""
        commands = [
            ["hedgerow", "ps", "--shard", f"{i}/{SERVERS}", *self.options(i)]
            for i in range(SERVERS)
        ]
        addresses = self.stack.enter_context(started(commands))
        configs = {TABLE: config_of(self.work.dim)}
        self.shards = [
            RemoteShard(address, configs, keys=self.client_keys()) for address in addresses
        ]
        for shard in self.shards:
            self.stack.callback(shard.close)
        self._assign()

    def reset(self) -> None:
        """First rows again, where pushes changed them."""
        if self._pushed:
            self._assign()

    def _assign(self) -> None:
        self._pushed = False
        for start, stop in self.work.calls():
            numbers = np.arange(start, stop)
            for i, shard in enumerate(self.shards):
                mine = numbers[numbers % SERVERS == i]
                rows = torch.from_numpy(self.work.first_rows_of(mine)).view(-1)
                shard.start_assign(TableKeys.of_one(torch.from_numpy(mine)), rows).wait()

    def ask(self, shares: Sequence[Tensor], outs: Sequence[Tensor]) -> None:
        """All under way, then all awaited."""
        waiting = [
            shard.start_lookup(TableKeys(share, (0, len(share))), out=out)
            for shard, share, out in zip(self.shards, shares, outs, strict=True)
        ]
        for one in waiting:
            one.wait()

    def update(self, batch: int, output: str) -> Tensor:
        """One push to every server, with a gradient of ones; nothing is read."""
        self._pushed = True
        shares = self._shares[batch]
        waiting = []
        for shard, share in zip(self.shards, shares, strict=True):
            grads = self._ones[: len(share) * self.work.dim]
            waiting.append(shard.start_apply_gradients(TableKeys.of_one(share), grads))
        for one in waiting:
            one.wait()
        return self._ones[:0]

    def place(self, access: str) -> None:
        """And a gradient for pushes."""
        super().place(access)
        self._ones = torch.ones_like(self._reused)

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        """Rows as they are now."""
        out = torch.empty(len(numbers) * self.work.dim)
        shares = [torch.from_numpy(numbers[numbers % SERVERS == i]) for i in range(SERVERS)]
        self.ask(shares, out.split([len(share) * self.work.dim for share in shares]))
        return out.numpy()


class OurServersCurve(OurServers):
    """Keys are made for the run."""

    def fill(self) -> None:
        """New keys first."""
        folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self._keys = folder / "keys"
        new_keys(self._keys)
        super().fill()

    def options(self, server: int) -> list[str]:
        """The folder of keys."""
        return ["--keys", str(self._keys)]

    def client_keys(self) -> Path:
        """The same folder."""
        return self._keys


class OurServersLog(OurServers):
    """Logs go to a temporary folder."""

    def fill(self) -> None:
        """A folder first."""
        self._folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        super().fill()

    def options(self, server: int) -> list[str]:
        """A log of its own."""
        return ["--checkpoint", str(self._folder / str(server)), "--durability", "log"]


if __name__ == "__main__":
    serve(OurServers, OurServersCurve, OurServersLog)
