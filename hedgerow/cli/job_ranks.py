"""The processes of a verb that runs under torchrun, mpirun or srun, as one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..sharding.agreement import Ranks


@contextmanager
def job_ranks() -> Iterator[Ranks]:
    """Joins the launcher's other processes until the end; under plain python it opens nothing.

    A process group that is there already is used, and left to its owner.
    """
    import torch.distributed as dist

    from ..launch.process_group import process_group
    from ..launch.rank_info import rank_info
    from ..sharding.agreement import Ranks

    if dist.is_initialized():
        yield Ranks(dist.group.WORLD)
        return
    if rank_info().world_size == 1:
        yield Ranks()
        return
    with process_group():
        yield Ranks(dist.group.WORLD)
