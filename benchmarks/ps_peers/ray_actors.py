"""Ray actors: arrays there and arrays back, through Ray's store of objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from .. import CHECKOUT
from ..peers.subject import serve
from .asked import SERVERS, Asked, ShardRows


class RayActors(Asked):
    """A local cluster of its own."""

    packages: ClassVar[tuple[str, ...]] = ("ray",)

    def fill(self) -> None:
        """One actor a server."""
        import ray

        ray.init(
            "local",
            num_cpus=SERVERS,
            include_dashboard=False,
            log_to_driver=False,
            runtime_env={"env_vars": {"PYTHONPATH": str(CHECKOUT)}},
        )
        self.stack.callback(ray.shutdown)
        actor: Any = ray.remote(num_cpus=1)(_Actor)
        self._actors = [actor.remote(self.work.folder, i, SERVERS) for i in range(SERVERS)]
        self._get = ray.get

    def ask(self, shares: Sequence[Tensor], outs: Sequence[Tensor]) -> None:
        """All under way, then each into its place."""
        pairs = zip(self._actors, shares, strict=True)
        waiting = [actor.lookup_array.remote(share.numpy()) for actor, share in pairs]
        for one, out in zip(waiting, outs, strict=True):
            out.numpy()[:] = self._get(one)


class _Actor(ShardRows):
    """Rows behind an actor."""

    def lookup_array(self, ids: Any) -> Any:
        """Arrays, which Ray moves without a copy of its own."""
        return self.lookup(torch.from_numpy(ids.copy())).numpy()


if __name__ == "__main__":
    serve(RayActors)
