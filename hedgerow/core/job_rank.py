"""Which process of a job this is, for folders that must not know of launchers.

Only `launch` reads what a launcher says. The package's `__init__` gives `launcher` the function
that asks it, when the package is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JobRank:
    """One process among the `count` processes of a job.

    >>> JobRank()
    JobRank(rank=0, count=1)
    """

    rank: int = 0
    count: int = 1


@dataclass(slots=True)
class Launcher:
    """What is known of the launcher before torch's process group is there."""

    rank: Callable[[], JobRank] = JobRank


launcher = Launcher()


def job_rank() -> JobRank:
    """This process: as torch's process group says, or the launcher where there is no group yet.

    >>> job_rank()
    JobRank(rank=0, count=1)
    """
    import torch.distributed as dist  # here, so that the package loads without torch

    if dist.is_available() and dist.is_initialized():
        return JobRank(dist.get_rank(), dist.get_world_size())
    return launcher.rank()
