"""The hottest keys that every rank should hold a copy of where all occurrences travel."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ...core import checks
from ...core.errors import InputError
from ...core.shapes import Int64
from ...routing.router import Router

EVEN = 1.10
"""The fullest rank has at most so many times the mean."""
MOST_COPIES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class HotCopies:
    """Keys whose copies even out ranks; worth it only where equal keys of a step are sent each.

    `before` and `after` are what the fullest rank has, with 1 as its fair share, of all
    occurrences. `enough` is False if copies alone do not help.
    """

    keys: tuple[int, ...]
    row_bytes: float
    before: float
    after: float
    enough: bool

    @property
    def bytes_per_rank(self) -> int:
        """What the copies take on every rank."""
        return -int(-len(self.keys) * self.row_bytes // 1)


def hot_copies(
    keys: Int64[Tensor, "n"], router: Router, *, row_bytes: float, even: float = EVEN
) -> HotCopies:
    """The fewest keys, the hottest of the fullest rank each time, that bring it down to `even`.

    What is copied is read where it is needed, so that it weighs on all ranks alike.

    >>> import torch
    >>> keys = torch.tensor([1] * 60 + [2] * 20 + [3] * 20)
    >>> found = hot_copies(keys, Router("roundrobin", 2), row_bytes=64)
    >>> found.keys, found.before, found.after, found.bytes_per_rank
    ((1,), 1.6, 1.0, 64)
    """
    if not len(keys):
        raise InputError("keys is empty; hot keys are found in a sample of keys.")
    checks.setting("hot_copies", "even", even, least=1)
    names, counts = keys.unique(return_counts=True)
    queues = _by_rank(names, counts, router)
    loads = [float(sum(count for count, _ in queue)) for queue in queues]
    limit = even * len(keys) / router.shards
    shared, copied, before = 0.0, [], max(loads)
    while max(loads) + shared > limit and len(copied) < MOST_COPIES:
        fullest = loads.index(max(loads))
        if not queues[fullest]:
            break
        count, key = queues[fullest].pop()
        loads[fullest] -= count
        shared += count / router.shards
        copied.append(key)
    mean = len(keys) / router.shards
    after = max(loads) + shared
    return HotCopies(
        keys=tuple(copied),
        row_bytes=row_bytes,
        before=before / mean,
        after=after / mean,
        enough=after <= limit,
    )


def _by_rank(names: Tensor, counts: Tensor, router: Router) -> list[list[tuple[int, int]]]:
    """(count, key) of every rank's own keys, the hottest last."""
    queues: list[list[tuple[int, int]]] = [[] for _ in range(router.shards)]
    order = counts.argsort(stable=True)
    owners = router.owners(names[order])
    rows = zip(owners.tolist(), counts[order].tolist(), names[order].tolist(), strict=True)
    for owner, count, key in rows:
        queues[owner].append((count, key))
    return queues
