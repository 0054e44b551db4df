"""Exchanges counts, ids and floats between ranks, which are processes or threads of a process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ..core import checks
from ..core.counters import Counters
from ..core.errors import ConfigError, ExchangeError, InputError
from ..core.shapes import Float32, Int64

WIRES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

Finish = Callable[[], None]
"""Waits until a started transfer has arrived. Raises if it failed."""


class PendingExchange:
    """Values in flight. All ranks must wait for several of them in the same order."""

    def __init__(self, sent: Tensor, arriving: Tensor, finish: Finish, dtype: torch.dtype) -> None:
        self._sent, self._arriving = sent, arriving  # keeps `sent` in memory until it is sent
        self._finish, self._dtype = finish, dtype

    def wait(self) -> Tensor:
        """Returns the values that arrived, source rank after source rank."""
        self._finish()
        return self._arriving.to(self._dtype)


class Exchange:
    """One rank's side of the exchanges of a group. Single-owner: one thread at a time.

    All ranks make the same calls in the same order. A rank that has nothing to send passes counts
    of 0. Tensors may be in host memory or on a device, and arrive where they were sent from. A gloo
    group copies device tensors through host memory. Threads that exchange at the same time need a
    group each. Without a group the process is the only rank, and receives what it sends without a
    copy. With `wire` bf16 or fp16, floats are rounded to that type. A rank also rounds the floats
    that it sends to itself, so that a row is the same on every rank. The largest number of fp16 is
    65504; larger numbers arrive as infinity.

    `rank` is the number of this rank among `ranks`. `counters` holds the bytes sent to and received
    from other ranks, for counts, words, ids and floats.

    >>> alone = Exchange()
    >>> alone.ids(torch.tensor([7, 8]), [2], [2]).tolist(), alone.ranks
    ([7, 8], 1)
    """

    def __init__(self, group: dist.ProcessGroup | None = None, *, wire: str = "fp32") -> None:
        checks.choice("Exchange", "wire", wire, WIRES)
        self.wire = wire
        self.counters = Counters()
        self.rank = 0 if group is None else dist.get_rank(group)
        self.ranks = 1 if group is None else dist.get_world_size(group)
        self._group, self._dtype = group, WIRES[wire]
        if self.rank < 0:
            raise ConfigError("this process is not a rank of the group; only its ranks exchange.")

    def counts(self, counts: Int64[Tensor, "ranks * k"]) -> Int64[Tensor, "ranks * k"]:
        """Sends k numbers to every rank, the sizes of what follows. Returns k from every rank."""
        checks.tensor("counts", counts, torch.int64, (None,), device=None)
        each, rest = divmod(len(counts), self.ranks)
        if rest:
            raise InputError(
                f"{len(counts)} counts for {self.ranks} ranks; give all the same number."
            )
        sizes = [each] * self.ranks
        return self._start("counts", counts, sizes, sizes).wait()

    def words(self, own: Int64[Tensor, "k"]) -> Int64[Tensor, "ranks * k"]:
        """Sends the same k numbers to every rank and returns k from every rank."""
        sizes = [len(own)] * self.ranks
        return self._start("words", own.repeat(self.ranks), sizes, sizes).wait()

    def ids(
        self, ids: Int64[Tensor, "n"], send: Sequence[int], receive: Sequence[int]
    ) -> Int64[Tensor, "m"]:
        """Sends `send[r]` ids to rank r. Returns the received ids, rank after rank."""
        return self.start_ids(ids, send, receive).wait()

    def start_ids(
        self, ids: Int64[Tensor, "n"], send: Sequence[int], receive: Sequence[int]
    ) -> PendingExchange:
        """Starts `ids` without waiting for the result."""
        checks.tensor("ids", ids, torch.int64, (None,), device=None)
        return self._start("ids", ids, send, receive)

    def floats(
        self,
        values: Float32[Tensor, "n"],
        send: Sequence[int],
        receive: Sequence[int],
        *,
        exact: bool = False,
    ) -> Float32[Tensor, "m"]:
        """Sends `send[r]` floats to rank r, rounded to the wire's type unless `exact`.

        Returns the received floats, rank after rank.
        """
        return self.start_floats(values, send, receive, exact=exact).wait()

    def start_floats(
        self,
        values: Float32[Tensor, "n"],
        send: Sequence[int],
        receive: Sequence[int],
        *,
        exact: bool = False,
    ) -> PendingExchange:
        """Starts `floats` without waiting for the result."""
        checks.tensor("values", values, torch.float32, (None,), device=None)
        travelling = values if exact else values.to(self._dtype)
        return self._start("floats", travelling, send, receive, torch.float32)

    def arrives_finite(self, values: Float32[Tensor, "n"]) -> bool:
        """Returns whether these floats arrive without NaN and infinity when sent over the wire.

        >>> Exchange(wire="fp16").arrives_finite(torch.tensor([7e4]))
        False
        """
        travelling = values.to(self._dtype)
        # A sum is NaN or infinite if a summand is. It takes a third of the time of a check of each.
        return bool(travelling.float().sum().isfinite() or travelling.isfinite().all())

    def _start(
        self,
        what: str,
        values: Tensor,
        send: Sequence[int],
        receive: Sequence[int],
        dtype: torch.dtype | None = None,
    ) -> PendingExchange:
        for sizes in (send, receive):
            if len(sizes) != self.ranks or min(sizes) < 0:
                raise InputError(
                    f"sizes {list(sizes)} of {what} for {self.ranks} ranks; give one of at least 0 "
                    f"per rank."
                )
        leaving, coming, own = sum(send), sum(receive), send[self.rank]
        if leaving != len(values):
            raise InputError(f"send adds up to {leaving} of {len(values)} {what}; send all.")
        if own != receive[self.rank]:
            raise InputError(
                f"rank {self.rank} sends itself {own} {what} and expects {receive[self.rank]}; "
                f"exchange the counts first."
            )
        arriving, finish = self._transfer(what, values, list(receive), list(send))
        size = values.element_size()
        self.counters.add(f"{what}_sent_bytes", (leaving - own) * size)
        self.counters.add(f"{what}_received_bytes", (coming - own) * size)
        return PendingExchange(values, arriving, finish, dtype or values.dtype)

    def _transfer(
        self, what: str, values: Tensor, receive: list[int], send: list[int]
    ) -> tuple[Tensor, Finish]:
        """Starts the transfer. Returns the output tensor, and a function that waits for it."""
        if self._group is None:
            return values, nothing_to_wait_for
        if not values.is_cpu and isinstance(
            self._group._get_backend(values.device), dist.ProcessGroupGloo
        ):
            return self._through_host(what, values, receive, send)
        arriving = values.new_empty(sum(receive))
        try:
            work = dist.all_to_all_single(
                arriving, values, receive, send, group=self._group, async_op=True
            )
        except RuntimeError as error:
            raise self._failed(what, error) from error

        def finish() -> None:
            try:
                if work is not None:
                    work.wait()
            except RuntimeError as error:
                raise self._failed(what, error) from error

        return arriving, finish

    def _through_host(
        self, what: str, values: Tensor, receive: list[int], send: list[int]
    ) -> tuple[Tensor, Finish]:
        """Copies to the host, transfers, and copies back to the device."""
        arriving = values.new_empty(sum(receive))
        landed, finish = self._transfer(what, values.cpu(), receive, send)

        def bring_back() -> None:
            finish()
            arriving.copy_(landed)

        return arriving, bring_back

    def _failed(self, what: str, error: Exception) -> ExchangeError:
        return ExchangeError(
            f"the exchange of {what} failed on rank {self.rank} of {self.ranks}: {error} A rank "
            f"has stopped, made another call, or exceeded the group's timeout; its own log shows "
            f"which. Start all ranks again from the last checkpoint."
        )


def nothing_to_wait_for() -> None:
    """Returns at once: the values have arrived."""


T = TypeVar("T")


class _SharedBuffers:
    """What each rank sends. No rank takes anything before all ranks have laid out theirs."""

    def __init__(self, ranks: int, timeout_s: float) -> None:
        self.ranks = ranks
        self.laid: list[tuple[str, tuple[Tensor, ...]]] = [("", ())] * ranks
        self.meet = threading.Barrier(ranks, timeout=timeout_s)


class LocalExchange(Exchange):
    """One of several ranks in this process, each in its own thread.

    >>> def total(exchange):
    ...     return exchange.counts(torch.tensor([1, 2, 3])).sum().item()
    >>> LocalExchange.run(3, total)
    [3, 6, 9]
    """

    def __init__(self, board: _SharedBuffers, rank: int, *, wire: str = "fp32") -> None:
        super().__init__(wire=wire)
        self._board, self.rank, self.ranks = board, rank, board.ranks

    @staticmethod
    def of(ranks: int, *, wire: str = "fp32", timeout_s: float = 60.0) -> list[LocalExchange]:
        """Returns the sides of all ranks. If one waits longer than the timeout, all ranks fail."""
        board = _SharedBuffers(checks.count("ranks", ranks, least=1), timeout_s)
        return [LocalExchange(board, rank, wire=wire) for rank in range(ranks)]

    @staticmethod
    def run(
        ranks: int,
        work: Callable[[LocalExchange], T],
        *,
        wire: str = "fp32",
        timeout_s: float = 60.0,
    ) -> list[T]:
        """Runs `work` on all ranks in parallel. Returns the results, or raises the first error."""
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
        if errors:  # the cause comes before the errors of ranks that waited for the failed rank
            raise min(errors, key=lambda error: isinstance(error, ExchangeError))
        return [future.result() for future in futures]

    def leave(self) -> None:
        """Stops taking part. Ranks that wait for this rank raise an error at once."""
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
            self._meet(what)  # the parts are memory of other ranks until here
        except ExchangeError as error:  # another rank found the mismatch and has left already
            raise wrong or error from error
        if wrong is not None:
            raise wrong
        return arriving, nothing_to_wait_for

    def _meet(self, what: str) -> None:
        try:
            self._board.meet.wait()
        except threading.BrokenBarrierError as error:
            raise self._failed(what, ValueError("a rank is missing.")) from error
