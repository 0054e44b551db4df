"""Ranks that are threads of one process: the exchanges of a group without a group."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from ..core import checks
from ..core.errors import ExchangeError
from .exchange import Exchange, Finish, nothing_to_wait_for

T = TypeVar("T")


class _Board:
    """Where ranks lay out what they send; all have laid out before one takes."""

    def __init__(self, ranks: int, timeout_s: float) -> None:
        self.ranks = ranks
        self.laid: list[tuple[str, tuple[Tensor, ...]]] = [("", ())] * ranks
        self.meet = threading.Barrier(ranks, timeout=timeout_s)


class LocalExchange(Exchange):
    """One of several ranks of this process, each in a thread of its own.

    >>> def total(exchange):
    ...     return exchange.counts(torch.tensor([1, 2, 3])).sum().item()
    >>> LocalExchange.run(3, total)
    [3, 6, 9]
    """

    def __init__(self, board: _Board, rank: int, *, wire: str = "fp32") -> None:
        super().__init__(wire=wire)
        self._board, self.rank, self.ranks = board, rank, board.ranks

    @staticmethod
    def of(ranks: int, *, wire: str = "fp32", timeout_s: float = 60.0) -> list[LocalExchange]:
        """The sides of all ranks; one that waits longer than the timeout gives up, then all do."""
        board = _Board(checks.count("ranks", ranks, least=1), timeout_s)
        return [LocalExchange(board, rank, wire=wire) for rank in range(ranks)]

    @staticmethod
    def run(
        ranks: int,
        work: Callable[[LocalExchange], T],
        *,
        wire: str = "fp32",
        timeout_s: float = 60.0,
    ) -> list[T]:
        """What `work` gives on each rank, side by side; the first error of a rank is raised."""
        sides = LocalExchange.of(ranks, wire=wire, timeout_s=timeout_s)

        def guarded(side: LocalExchange) -> T:
            try:
                return work(side)
            except BaseException:
                side.leave()
                raise

        with ThreadPoolExecutor(ranks) as pool:
            futures = [pool.submit(guarded, side) for side in sides]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:  # the cause stands before those that it left alone
            raise min(errors, key=lambda error: isinstance(error, ExchangeError))
        return [future.result() for future in futures]

    def leave(self) -> None:
        """Stops taking part: whoever waits for this rank gets an error at once."""
        self._board.meet.abort()

    def _transfer(
        self, what: str, values: Tensor, receive: list[int], send: list[int]
    ) -> tuple[Tensor, Finish]:
        board = self._board
        board.laid[self.rank] = (what, values.split(send))
        self._meet(what)
        others = {other for other, _ in board.laid}
        parts = [laid[self.rank] for _, laid in board.laid]
        got = [len(part) for part in parts]
        wrong, arriving = None, values.new_empty(sum(receive))
        if len(others) > 1 or got != receive:
            reason = f"ranks exchange {sorted(others)}, {got} arrive and {receive} were expected."
            wrong = self._failed(what, ValueError(reason))
        else:
            torch.cat(parts, out=arriving)
        try:
            self._meet(what)  # the parts are others' memory until here
        except ExchangeError as error:  # another rank saw what is wrong and left already
            raise wrong or error from error
        if wrong is not None:
            raise wrong
        return arriving, nothing_to_wait_for

    def _meet(self, what: str) -> None:
        try:
            self._board.meet.wait()
        except threading.BrokenBarrierError as error:
            raise self._failed(what, ValueError("a rank is missing.")) from error
