"""Keys brought to their owners: what each rank asked for, its rows back, its gradients after."""

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
"""Ids by rank and table."""


@dataclass(frozen=True, slots=True, eq=False)
class Delivery:
    """What went from here to each owner, and what came here from each rank, by table.

    `ids` came here: source rank after source rank, inside a rank table after table.
    """

    sent: Sizes
    received: Sizes
    ids: Int64[Tensor, "n"]

    def keys_of(self, rank: int) -> TableKeys:
        """What one rank asked this owner for."""
        start = sum(map(sum, self.received[:rank]))
        splits = splits_of(self.received[rank])
        return TableKeys(self.ids[start : start + splits[-1]], splits)

    def merged_keys(self) -> TableKeys:
        """What all ranks asked this owner for, in the order of ranks inside a table."""
        of_table = [sum(sizes) for sizes in zip(*self.received, strict=True)]
        return TableKeys(by_table(self.ids, self.received), splits_of(of_table))


@dataclass(frozen=True, slots=True)
class GradientMerging:
    """How gradients of one id that come from several ranks become steps."""

    across_ranks: bool = True  # one step with their sum; else one a rank, in the order of ranks
    divide_by: int = 1  # what every rank sends: their number, where gradients are averaged


def sizes_of(slot_sizes: Int64[Tensor, "R * K"], ranks: int) -> Sizes:
    """Ids by rank and table, as plain numbers."""
    return tuple(map(tuple, slot_sizes.view(ranks, -1).tolist()))


def totals(sizes: Sizes) -> list[int]:
    """Ids for or from each rank."""
    return [sum(of_tables) for of_tables in sizes]


def floats_of(sizes: Sizes, dims: Sequence[int]) -> list[int]:
    """Floats for or from each rank."""
    return [sum(map(mul, of_tables, dims)) for of_tables in sizes]


def by_table(flat: Tensor, sizes: Sizes, dims: Sequence[int] | None = None) -> Tensor:
    """Parts that lie rank after rank, laid table after table.

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
    """Undoes `by_table`.

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
    """Brings ids to their owners, the counts first; `slot_sizes` by owner and table."""
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
    """The owners look up what they were asked for; the rows of what was sent from here set out."""
    leaving = floats_of(at.received, dims)
    rows = torch.empty(sum(leaving), device=at.ids.device)
    for rank, out in enumerate(rows.split(leaving)):
        store.lookup(at.keys_of(rank), missing=missing, step=step, out=out)
    return exchange.start_floats(rows, leaving, floats_of(at.sent, dims))


@dataclass(frozen=True, slots=True, eq=False)
class GradientPush:
    """Gradients and their occurrences on the way to the owners of what was sent from here."""

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
        """Sends them off."""
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
        """Waits for those that come here, and makes their steps."""
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
        """Waits for those that come here: keys, gradients and occurrences of each step."""
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
