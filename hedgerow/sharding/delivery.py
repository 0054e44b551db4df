"""Sends keys to their owners, rows back to the requesting ranks, and gradients to the owners."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import mul

import torch
from torch import Tensor

from ..core.shapes import Float32, Int64
from ..tables.multi import parts
from ..tables.multi.routed_keys import splits_of
from ..tables.optimizers import Rate
from ..tables.store import Applied, Missing, RowStore, TableKeys
from .exchange import Exchange, PendingExchange

Sizes = tuple[tuple[int, ...], ...]
"""The number of ids by rank and table."""


@dataclass(frozen=True, slots=True, eq=False)
class Delivery:
    """The ids that this rank sent to each owner and received from each rank, by table.

    `ids` are the received ids: rank after rank, and table after table within a rank.
    """

    sent: Sizes
    received: Sizes
    ids: Int64[Tensor, "n"]

    def keys_of(self, rank: int) -> TableKeys:
        """Returns the keys that one rank requested of this owner."""
        start = sum(map(sum, self.received[:rank]))
        splits = splits_of(self.received[rank])
        return TableKeys(self.ids[start : start + splits[-1]], splits)

    def merged_keys(self) -> TableKeys:
        """Returns the keys that all ranks requested of this owner, by table and then by rank."""
        of_table = [sum(sizes) for sizes in zip(*self.received, strict=True)]
        return TableKeys(by_table(self.ids, self.received), splits_of(of_table))


@dataclass(frozen=True, slots=True)
class GradientMerging:
    """How the gradients of one id that come from several ranks become optimizer steps."""

    across_ranks: bool = True  # one step with their sum; else one step per rank, in their order
    divide_by: int = 1  # divisor of all gradients: the number of ranks if they are averaged


def sizes_of(slot_sizes: Int64[Tensor, "R * K"], ranks: int) -> Sizes:
    """Returns the number of ids by rank and table, as Python ints."""
    return tuple(map(tuple, slot_sizes.view(ranks, -1).tolist()))


def totals(sizes: Sizes) -> list[int]:
    """Returns the number of ids for each rank, over all tables."""
    return [sum(of_tables) for of_tables in sizes]


def floats_of(sizes: Sizes, dims: Sequence[int]) -> list[int]:
    """Returns the number of floats for each rank, over all tables."""
    return [sum(map(mul, of_tables, dims)) for of_tables in sizes]


def by_table(flat: Tensor, sizes: Sizes, dims: Sequence[int] | None = None) -> Tensor:
    """Reorders parts from rank after rank to table after table.

    >>> by_table(torch.tensor([1, 2, 3, 4]), ((1, 1), (1, 1))).tolist()
    [1, 3, 2, 4]
    """
    tables = len(sizes[0])
    if len(sizes) == 1 or tables == 1:
        return flat
    widths = dims or [1] * tables
    cells = flat.split([n * d for row in sizes for n, d in zip(row, widths, strict=True)])
    return torch.cat([cells[i] for k in range(tables) for i in range(k, len(cells), tables)])


def by_rank(flat: Tensor, sizes: Sizes, dims: Sequence[int] | None = None) -> Tensor:
    """Reorders parts from table after table to rank after rank. Undoes `by_table`.

    >>> by_rank(torch.tensor([1, 3, 2, 2, 4, 4]), ((1, 1), (1, 1)), (1, 2)).tolist()
    [1, 2, 2, 3, 4, 4]
    """
    ranks, tables = len(sizes), len(sizes[0])
    if ranks == 1 or tables == 1:
        return flat
    widths = dims or [1] * tables
    cells = flat.split([row[k] * widths[k] for k in range(tables) for row in sizes])
    return torch.cat([cells[i] for rank in range(ranks) for i in range(rank, len(cells), ranks)])


def deliver(
    exchange: Exchange, ids: Int64[Tensor, "n"], slot_sizes: Int64[Tensor, "R * K"]
) -> Delivery:
    """Sends ids to their owners, after their counts. `slot_sizes` are counts by owner and table."""
    received = sizes_of(exchange.counts(slot_sizes), exchange.ranks)
    sent = sizes_of(slot_sizes, exchange.ranks)
    return Delivery(
        sent, received, exchange.ids(ids, list(map(sum, sent)), list(map(sum, received)))
    )


def start_fetch(
    exchange: Exchange,
    at: Delivery,
    store: RowStore,
    dims: Sequence[int],
    *,
    missing: Missing,
    step: int | None,
) -> PendingExchange:
    """Looks up the rows that ranks requested of this owner, and starts to send all rows back.

    The rows that arrive are those of the keys that this rank sent.
    """
    leaving = floats_of(at.received, dims)
    rows = torch.empty(sum(leaving), device=at.ids.device)
    for rank, out in enumerate(rows.split(leaving)):
        store.lookup(at.keys_of(rank), missing=missing, step=step, out=out)
    return exchange.start_floats(rows, leaving, floats_of(at.sent, dims))


@dataclass(frozen=True, slots=True, eq=False)
class GradientPush:
    """Gradients and occurrences in flight to the owners of their keys."""

    at: Delivery
    dims: Sequence[int]
    grads: PendingExchange
    counts: PendingExchange
    merging: GradientMerging

    @staticmethod
    def start(
        exchange: Exchange,
        at: Delivery,
        dims: Sequence[int],
        grads: Float32[Tensor, "floats"],
        occurrences: Int64[Tensor, "n"],
        merging: GradientMerging,
    ) -> GradientPush:
        """Starts to send gradients and occurrences."""
        counts = exchange.start_ids(occurrences, totals(at.sent), totals(at.received))
        sizes = floats_of(at.sent, dims), floats_of(at.received, dims)
        return GradientPush(at, dims, exchange.start_floats(grads, *sizes), counts, merging)

    def apply(
        self,
        store: RowStore,
        *,
        rates: Sequence[Rate] | None = None,
        step: int | None = None,
        ts: int = 0,
        per_occurrence: bool = False,
    ) -> Applied:
        """Waits for the gradients that this owner receives, and makes their optimizer steps."""
        applied = []
        for keys, grads, counts in self.arrived():
            applied.append(
                store.apply_gradients(
                    keys,
                    grads,
                    rates=rates,
                    step=step,
                    ts=ts,
                    counts=counts,
                    per_occurrence=per_occurrence,
                )
            )
        return parts.total(applied)

    def arrived(self) -> Iterator[tuple[TableKeys, Tensor, Tensor]]:
        """Yields the keys, gradients and occurrences that this owner receives, for each step."""
        counts, grads = self.counts.wait(), self.grads.wait()
        if self.merging.divide_by != 1:
            grads = grads / self.merging.divide_by
        received = self.at.received
        if self.merging.across_ranks:
            flat = by_table(grads, received, self.dims)
            yield self.at.merged_keys(), flat, by_table(counts, received)
            return
        of_ranks = grads.split(floats_of(received, self.dims)), counts.split(totals(received))
        for rank, (share, its_counts) in enumerate(zip(*of_ranks, strict=True)):
            yield self.at.keys_of(rank), share, its_counts
