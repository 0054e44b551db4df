"""Shares values between the ranks of a group, and makes work fail on all ranks or on none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from ..core.errors import ExchangeError, HedgerowError

T = TypeVar("T")


class RankGroup:
    """The ranks of a process group, or one rank without a group. Calls are collectives.

    >>> alone = RankGroup()
    >>> alone.tell("here"), alone.total(0.5), alone.together("counting", lambda: 3)
    (['here'], 0.5, [3])
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        self.rank = 0 if group is None else dist.get_rank(group)
        self.count = 1 if group is None else dist.get_world_size(group)

    def __repr__(self) -> str:
        return f"Ranks(rank {self.rank} of {self.count})"

    def tell(self, word: Any) -> list[Any]:
        """Sends `word` to all ranks. Returns the words of all ranks, in the order of ranks."""
        if self._group is None:
            return [word]
        words: list[Any] = [None] * self.count
        try:
            dist.all_gather_object(words, word, group=self._group)
        except RuntimeError as error:
            raise self._left_alone(error) from error
        return words

    def total(self, number: float) -> float:
        """Returns the sum of all ranks' numbers, with the same bits on every rank."""
        if self._group is None:
            return number
        numbers = [torch.zeros(1, dtype=torch.float64) for _ in range(self.count)]
        try:
            mine = torch.tensor([number], dtype=torch.float64)
            dist.all_gather(numbers, mine, group=self._group)
        except RuntimeError as error:
            raise self._left_alone(error) from error
        return sum(one.item() for one in numbers)

    def together(self, doing: str, work: Callable[[], T]) -> list[T]:
        """Returns the results of `work` on all ranks. If it raises on one rank, all ranks raise.

        The rank that failed raises its own error. The other ranks raise an error that names this
        rank. Its class is the same if that is a `HedgerowError`, else `ExchangeError`.
        """
        if self._group is None:
            return [work()]
        failed: BaseException | None = None
        done: T | None = None
        try:
            done = work()
        except BaseException as error:  # sent to the other ranks first, then raised below
            failed = error
        words: list[Any] = self.tell((done, _raisable(failed)))
        if failed is not None:
            raise failed
        for rank, (_, problem) in enumerate(words):
            if problem is not None:
                kind, text = problem
                raise kind(f"{doing} failed on rank {rank} of {self.count}: {text}")
        return [word for word, _ in words]

    def _left_alone(self, error: Exception) -> ExchangeError:
        return ExchangeError(
            f"rank {self.rank} of {self.count} got no answer: {error} Another rank has stopped, "
            f"made another call, or exceeded the group's timeout; its own log shows which."
        )


def _raisable(error: BaseException | None) -> tuple[type[HedgerowError], str] | None:
    """Returns class and message of an error as other ranks raise it; None without an error."""
    if error is None:
        return None
    ours = isinstance(error, HedgerowError)
    return (type(error), str(error)) if ours else (ExchangeError, f"{error!r}")
