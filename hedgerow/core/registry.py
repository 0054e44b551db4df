"""The one place for process-wide state: objects by shared name, held weakly."""

from __future__ import annotations

import weakref

from .errors import NameTakenError
from .forklock import ForkLock

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
