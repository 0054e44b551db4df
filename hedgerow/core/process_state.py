"""State of one process: named shared objects, locks that stay usable after a fork, and its rank.

Only the `launch` folder reads the launcher's settings. Importing the package sets `launcher.rank`
to a function of `launch`.
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
    """A mutex that is unlocked in the child after a fork.

    A plain lock that another thread holds during a fork stays locked in the child forever. Use this
    one only for short sections that may be abandoned halfway.

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
        """Replaces the lock by an unlocked one. Called in a forked child."""
        self._lock = threading.Lock()


_all: weakref.WeakSet[ForkLock] = weakref.WeakSet()


def _open_all() -> None:
    for lock in list(_all):
        lock.open_anew()


os.register_at_fork(after_in_child=_open_all)


_lock = ForkLock()
_objects: weakref.WeakValueDictionary[str, object] = weakref.WeakValueDictionary()


def register(name: str, value: object) -> None:
    """Registers `value` under `name` for as long as `value` lives.

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
    """Removes `name` if it is registered for `value`."""
    with _lock:
        if _objects.get(name) is value:
            del _objects[name]


def find(name: str) -> object | None:
    """Returns the object registered under `name`, or None."""
    with _lock:
        return _objects.get(name)


def clear() -> None:
    """Removes all names. For tests."""
    with _lock:
        _objects.clear()


@dataclass(frozen=True, slots=True)
class JobRank:
    """The rank of one process in a job of `count` processes.

    >>> JobRank()
    JobRank(rank=0, count=1)
    """

    rank: int = 0
    count: int = 1


@dataclass(slots=True)
class Launcher:
    """Reads the rank from the launcher before torch's process group exists."""

    rank: Callable[[], JobRank] = JobRank


launcher = Launcher()


def job_rank() -> JobRank:
    """Returns this process's rank from torch's process group, or else from the launcher.

    >>> job_rank()
    JobRank(rank=0, count=1)
    """
    import torch.distributed as dist  # imported here so that the package loads without torch

    if dist.is_available() and dist.is_initialized():
        return JobRank(dist.get_rank(), dist.get_world_size())
    return launcher.rank()
