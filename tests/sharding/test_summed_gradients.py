"""Gradients summed at their owners: by keys, by the lookup, by both, and where no rank has any."""

from __future__ import annotations

import pytest
import torch

from hedgerow.core.errors import NotFiniteError
from hedgerow.sharding.all_to_all_tables import AllToAllTables
from hedgerow.tables.store import ClipRow, Lookup, TableKeys, UpdatePolicy

from .worlds import configs, keys_of, on_ranks

BATCHES = [[[5, 5, 7], [1]], [[5, 8, 9], [1, 2]]]


def _grads(keys: TableKeys) -> torch.Tensor:
    return torch.ones(keys.splits[1] * 3 + (keys.splits[2] - keys.splits[1]))


@pytest.mark.parametrize("by_lookup", [(), (0,), (0, 1)])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("dedup", [True, False])
def test_owners_get_the_gradients_of_all_ranks(
    by_lookup: tuple[int, ...], reduce: str, dedup: bool
) -> None:
    def work(tables: AllToAllTables) -> tuple[dict[int, float], dict[int, int], bool]:
        rank = tables.exchange.rank
        keys = keys_of(BATCHES[rank])
        found: Lookup = tables.lookup(keys)
        at = found if rank in by_lookup else keys
        sums = tables.summed_gradients(at, _grads(keys))
        ids, first = sums.keys.ids_of(0), sums.grads_of(0)[:, 0]
        assert bool((tables.routers[0].owners(ids) == rank).all())
        counts = dict(zip(ids.tolist(), sums.counts_of(0).tolist(), strict=True))
        return dict(zip(ids.tolist(), first.tolist(), strict=True)), counts, sums.given

    got = on_ranks(2, work, configs(2), reduce=reduce, dedup=dedup)
    share = 1.0 if reduce == "sum" else 0.5
    assert got[0][0] | got[1][0] == {5: 3 * share, 7: share, 8: share, 9: share}
    assert got[0][1] | got[1][1] == {5: 3, 7: 1, 8: 1, 9: 1}
    assert all(given for *_, given in got)


def test_an_update_at_the_sums_is_the_update_at_the_keys() -> None:
    policy = UpdatePolicy(clip=ClipRow(0.5))

    def work(tables: AllToAllTables) -> torch.Tensor:
        keys = keys_of(BATCHES[tables.exchange.rank])
        sums = tables.summed_gradients(keys, _grads(keys))
        later = tables.summed_gradients(keys, 2 * _grads(keys))
        both = sums.with_later(later)
        tables.apply_gradients(both.at, both.grads, counts=both.counts, step=0, policy=policy)
        return tables.lookup(keys_of([[5, 7, 8, 9], [1, 2]])).rows

    def at_once(tables: AllToAllTables) -> torch.Tensor:
        keys = keys_of(BATCHES[tables.exchange.rank])
        tables.apply_gradients(keys, 3 * _grads(keys), step=0, policy=policy)
        return tables.lookup(keys_of([[5, 7, 8, 9], [1, 2]])).rows

    for ours, plain in zip(
        on_ranks(2, work, configs(2)), on_ranks(2, at_once, configs(2)), strict=True
    ):
        torch.testing.assert_close(ours, plain)


@pytest.mark.parametrize("summed_before", [False, True])
def test_what_is_not_finite_on_one_rank_changes_no_row_of_any(summed_before: bool) -> None:
    def work(tables: AllToAllTables) -> int:
        keys = keys_of(BATCHES[tables.exchange.rank])
        grads = _grads(keys)
        grads[0] = float("nan") if tables.exchange.rank else 1.0
        at: TableKeys | Lookup = keys
        counts = None
        if summed_before:
            sums = tables.summed_gradients(keys, grads)
            at, grads, counts = sums.at, sums.grads, sums.counts
        with pytest.raises(NotFiniteError, match="no row was changed on any rank"):
            tables.apply_gradients(at, grads, counts=counts, step=0)
        return tables.size()

    assert on_ranks(2, work, configs(2)) == [0, 0]


def test_where_no_rank_has_any_nothing_travels() -> None:
    def work(tables: AllToAllTables) -> tuple[int, bool, bool, int]:
        sent = tables.updates.counters.read("floats_sent_bytes")
        sums = tables.summed_gradients(keys_of([[], []]), torch.empty(0), given=False)
        took_part = tables.take_part(step=0, ts=0)
        now = tables.updates.counters.read("floats_sent_bytes")
        return len(sums.counts), sums.given, took_part, now - sent

    assert on_ranks(2, work, configs(2)) == [(0, False, False, 0)] * 2


def test_a_rank_without_gradients_takes_part_and_applies_the_policy() -> None:
    policy = UpdatePolicy(clip=ClipRow(0.5))

    def work(tables: AllToAllTables) -> tuple[bool, int, list[float]]:
        keys = keys_of([[5, 8], []])
        tables.assign(keys, torch.zeros(6))
        took_part = True
        if tables.exchange.rank:
            tables.apply_gradients(keys, _grads(keys), step=0, policy=policy)
        else:
            took_part = tables.take_part(step=0, ts=0, policy=policy)
        moved = tables.lookup(keys).rows.view(2, 3).norm(dim=1).tolist()
        return took_part, tables.size(), moved

    got = on_ranks(2, work, configs(2))
    assert all(took_part for took_part, *_ in got)
    assert sum(size for _, size, _ in got) == 2
    assert all(norm == pytest.approx(0.25) for *_, norms in got for norm in norms)
