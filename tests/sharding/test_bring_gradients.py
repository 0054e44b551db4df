"""Gradients brought to their owners: by keys, by the lookup, by both, and by nobody."""

from __future__ import annotations

import pytest
import torch

from hedgerow.sharding.all_to_all_tables import AllToAllTables
from hedgerow.tables.store import Lookup, TableKeys

from .worlds import configs, keys_of, on_ranks

BATCHES = [[[5, 5, 7], [1]], [[5, 8, 9], [1, 2]]]


def _grads(keys: TableKeys) -> torch.Tensor:
    return torch.ones(keys.splits[1] * 3 + (keys.splits[2] - keys.splits[1]))


def _total(brought: list[tuple[list[int], list[int], list[float], int]]) -> dict[int, float]:
    found: dict[int, float] = {}
    for ids, counts, first, _ in brought:
        for key, _, value in zip(ids, counts, first, strict=True):
            found[key] = found.get(key, 0) + value
    return found


@pytest.mark.parametrize("by_lookup", [(), (0,), (0, 1)])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("dedup", [True, False])
def test_owners_get_the_gradients_of_all_ranks(
    by_lookup: tuple[int, ...], reduce: str, dedup: bool
) -> None:
    def work(tables: AllToAllTables) -> tuple[list[int], list[int], list[float], int]:
        rank = tables.exchange.rank
        keys = keys_of(BATCHES[rank])
        found: Lookup = tables.lookup(keys)
        at = found if rank in by_lookup else keys
        brought = tables.bring_gradients(at, _grads(keys))
        first = brought.grads[: brought.keys.splits[1] * 3].view(-1, 3)[:, 0].tolist()
        ids = brought.keys.ids_of(0)
        assert bool((tables.routers[0].owners(ids) == rank).all())
        counts = brought.counts[: len(ids)]
        if dedup:
            assert counts.tolist() == [2 if i == 5 and n == 0 else 1 for n, i in _order(ids)]
        return ids.tolist(), counts.tolist(), first, brought.everywhere

    brought = on_ranks(2, work, configs(2), reduce=reduce, dedup=dedup)
    assert [everywhere for *_, everywhere in brought] == [9, 9]
    share = 1.0 if reduce == "sum" else 0.5
    assert _total(brought) == {5: 3 * share, 7: share, 8: share, 9: share}
    assert sum(count for _, counts, *_ in brought for count in counts) == 6


def _order(ids: torch.Tensor) -> list[tuple[int, int]]:
    """How often each id stood before, and the id: rank 0 sent 5 twice, rank 1 once."""
    listed = ids.tolist()
    return [(listed[:k].count(i), i) for k, i in enumerate(listed)]


def test_where_nobody_has_any_nothing_travels() -> None:
    def work(tables: AllToAllTables) -> tuple[int, int, int]:
        sent = tables.updates.counters.read("floats_sent_bytes")
        brought = tables.bring_gradients(keys_of([[], []]), torch.empty(0))
        now = tables.updates.counters.read("floats_sent_bytes")
        return len(brought.keys.ids), brought.everywhere, now - sent

    assert on_ranks(2, work, configs(2)) == [(0, 0, 0)] * 2
