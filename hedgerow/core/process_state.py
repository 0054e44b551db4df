"""State of one process: shared objects by name, a lock that survives a fork, the rank in a job.

Only `launch` reads what a launcher says. The package's `__init__` gives `launcher` the function
that asks it, when the package is imported.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from .errors import NameTakenError


class ForkLock:
    """A mutex for short sections that leave no half-done work worth keeping.

    A plain lock that another thread holds during a fork stays locked in the child for ever.

    >>> lock = ForkLock()
    >>> with lock:
    ...     pass
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _all.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()

    def open_anew(self) -> None:
        """Opens the lock in a forked child, where no thread holds it any more."""
        self._lock = threading.Lock()


_all: weakref.WeakSet[ForkLock] = weakref.WeakSet()


def _open_all() -> None:
    for lock in list(_all):
        lock.open_anew()


os.register_at_fork(after_in_child=_open_all)


_lock = ForkLock()
_objects: weakref.WeakValueDictionary[str, object] = weakref.WeakValueDictionary()


def register(name: str, value: object) -> None:
    """Claims `name` for `value` as long as `value` lives.

    >>> class Thing: pass
    >>> thing = Thing()
    >>> register("example", thing)
    >>> find("example") is thing
    True
    >>> release("example", thing)
    """
    with _lock:
        if _objects.get(name) is not None:
            raise NameTakenError(
                f"the shared name {name!r} is taken by a {type(_objects[name]).__name__} of this "
                f"process; close that one first or choose another name."
            )
        _objects[name] = value


def release(name: str, value: object) -> None:
    """Gives the name back if `value` has it."""
    with _lock:
        if _objects.get(name) is value:
            del _objects[name]


def find(name: str) -> object | None:
    """What is registered under `name`, or None."""
    with _lock:
        return _objects.get(name)


def clear() -> None:
    """Forgets everything: for tests."""
    with _lock:
        _objects.clear()


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
