"""One op against a chain of torch's ops, and against itself with fewer threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hedgerow import native

from .rounds import OnRound, compared, in_turns

CHAIN, ONE_THREAD = "torch chain", "one thread"
_ENOUGH_MS, _MOST_CALLS = 20.0, 20  # of one round; short calls are repeated

Maker = Callable[["Sizes"], "Duel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much work the cases do.

    >>> FULL.ids > QUICK.ids
    True
    """

    ids: int  # of split and map
    gather_ids: int
    reorder_ids: int  # distinct, in all slots
    reorder_slot_ids: int
    windows: tuple[int, int]
    tables: int  # of fused_reduce_and_split
    reduce_rows: int
    batch: int
    features: int  # of the layout, forward and backward
    gradient_features: int


FULL = Sizes(
    ids=1_000_000,
    gather_ids=100_000,
    reorder_ids=1_000_000,
    reorder_slot_ids=10_240,
    windows=(74_070, 82_439),
    tables=102,
    reduce_rows=256,
    batch=256,
    features=199,
    gradient_features=29,
)
QUICK = Sizes(
    ids=2_000,
    gather_ids=500,
    reorder_ids=1_000,
    reorder_slot_ids=40,
    windows=(74, 82),
    tables=6,
    reduce_rows=16,
    batch=8,
    features=11,
    gradient_features=7,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Duel:
    """Two ways to one result, each with outputs of its own: `ours(many_threads)` and `peer()`."""

    ours: Callable[[bool], Any]
    peer: Callable[[], Any]
    work: dict[str, Any] = field(default_factory=dict)  # its sizes, for the report
    wanted: Any = None  # what both must give, where that is known


@contextmanager
def threads(count: int) -> Iterator[None]:
    """So many threads for us and for torch."""
    before = native.threads(), torch.get_num_threads()
    native.set_threads(count)
    torch.set_num_threads(count)
    try:
        yield
    finally:
        native.set_threads(before[0])
        torch.set_num_threads(before[1])


def against_chain(case: str, duel: Duel, rounds: int, on_round: OnRound) -> dict[str, Any]:
    """One thread each. The first round warms up and compares the results."""
    with threads(1):
        equal = agreed(duel, duel.ours(False), duel.peer())
        ours, peer = _repeated(lambda: duel.ours(False)), _repeated(duel.peer)
        on_round(case)
        times = []
        for number in range(rounds):
            spent = in_turns(ours.run, peer.run, ours_first=number % 2 == 0)
            times.append((spent[0] / ours.calls, spent[1] / peer.calls))
            on_round(case)
    return _result(case, CHAIN, times, equal, 1, duel)


def against_one_thread(
    case: str, duel: Duel, count: int, rounds: int, on_round: OnRound
) -> dict[str, Any]:
    """The same op with `count` threads and with one: a ratio of 0.95 is 1.05 times as slow."""
    equal = agreed(duel, _threaded(duel, count), _threaded(duel, 1))
    on_round(case)
    times = []
    for number in range(rounds):
        spent: dict[int, float] = {}
        for use in (count, 1) if number % 2 == 0 else (1, count):
            with threads(use):
                spent[use] = _ms(_repeated(lambda many=use > 1: duel.ours(many)))
        times.append((spent[count], spent[1]))
        on_round(case)
    return _result(case, ONE_THREAD, times, equal, count, duel)


@dataclass(frozen=True, slots=True)
class _Calls:
    """A call, as often as makes it long enough for the clock and for a machine with other work."""

    call: Callable[[], Any]
    calls: int

    def run(self) -> None:
        for _ in range(self.calls):
            self.call()


def _repeated(call: Callable[[], Any]) -> _Calls:
    """Counted by a call that wakes threads and warms caches."""
    return _Calls(call, 1 + int(_ENOUGH_MS / max(_ms(_Calls(call, 1)), _ENOUGH_MS / _MOST_CALLS)))


def _ms(calls: _Calls) -> float:
    """Milliseconds of one."""
    start = time.perf_counter()
    calls.run()
    return 1e3 * (time.perf_counter() - start) / calls.calls


def _threaded(duel: Duel, count: int) -> Any:
    with threads(count):
        return duel.ours(count > 1)


def _result(
    case: str,
    peer: str,
    times: list[tuple[float, float]],
    equal: bool,
    count: int,
    duel: Duel,
) -> dict[str, Any]:
    found = compared(case, peer, times)
    return {**found, "output": "fresh", "threads": count, "equal": equal, **duel.work}


def agreed(duel: Duel, ours: Any, other: Any) -> bool:
    """Both are the same, and what they must be."""
    return same(ours, other) and (duel.wanted is None or same(ours, duel.wanted))


def same(one: Any, other: Any) -> bool:
    """Equal structures of tensors: whole numbers exactly, floats but for their rounding.

    >>> same([torch.tensor([1])], (torch.tensor([1]),)), same(torch.tensor([1.0]), torch.ones(2))
    (True, False)
    """
    if isinstance(one, Tensor):
        if not isinstance(other, Tensor) or (one.shape, one.dtype) != (other.shape, other.dtype):
            return False
        if not one.is_floating_point():
            return torch.equal(one, other)
        return torch.allclose(one, other, rtol=1e-5, atol=1e-6)
    if isinstance(one, Sequence) and isinstance(other, Sequence):
        return len(one) == len(other) and all(map(same, one, other))
    return False
