"""One thing that `hedgerow bench gpu` measures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Peer:
    """Another library's way to the same work, or why it cannot be had."""

    name: str
    run: Work | None = None
    missing: str | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """A call and the bytes that it cannot avoid: everything it touches, once.

    `items` are the keys or vectors of a call. `equal` compares a result with that of the plain
    twin. `by_torch` is torch's own way to the same result. `restore` puts back what a call changes,
    outside the time. With `in_a_row`, so many calls are also measured one after the other, by the
    wall clock: what a training loop gets. `missing` says why the case cannot run.
    """

    name: str
    moved_bytes: int
    run: Work
    items: int = 0
    equal: Callable[[], bool] | None = None
    by_torch: Work | None = None
    restore: Work | None = None
    peer: Peer | None = None
    in_a_row: int = 0
    missing: str | None = None
