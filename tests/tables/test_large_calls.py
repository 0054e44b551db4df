"""Calls large enough for their own paths: streamed output, many tiles, rows in batch order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from hedgerow import native
from hedgerow.tables import initializers, optimizers

from ..support import isa, make_table


@pytest.fixture(params=native.isas(), autouse=True)
def every_isa(request: pytest.FixtureRequest) -> Iterator[None]:
    with isa(request.param):
        yield


@pytest.mark.parametrize("dim", [16, 48, 20])  # 20: rows are not whole lines
def test_output_larger_than_the_caches(dim: int) -> None:
    table = make_table(dim=dim)
    known = torch.arange(50_000)
    rows = torch.randn(len(known), dim)
    table.assign(known, rows)
    ids = torch.randint(0, 60_000, (36 * 2**20 // (4 * dim),))
    expected = torch.where(ids[:, None] < 50_000, rows[ids.clamp(max=49_999)], torch.zeros(1))
    out = torch.full((len(ids), dim), torch.nan)
    assert torch.equal(table.lookup(ids, out=out).rows_of(), expected)
    room = torch.full((len(ids) * dim + 1,), torch.nan)  # output that is not aligned to lines
    unaligned = room[1:].view(len(ids), dim)
    table.lookup(ids, out=unaligned)
    assert torch.equal(unaligned, expected)
    assert room[0].isnan()


def _summed(ids: torch.Tensor, grads: torch.Tensor) -> torch.Tensor:
    """What one SGD step makes of zero rows: gradients added in the order of the batch."""
    sums = torch.zeros(int(ids.max()) + 1, grads.shape[1])
    for i, id_ in enumerate(ids.tolist()):
        sums[id_] += grads[i]
    return -sums


@pytest.mark.parametrize("dim", [1, 16, 200])
def test_equal_ids_far_apart_are_summed_in_order(dim: int) -> None:
    """Occurrences of one id lie in different tiles; the sum is the plain loop's, bit for bit."""
    table = make_table(dim=dim, init=initializers.Zeros(), optimizer=optimizers.Sgd(lr=1.0))
    ids = torch.randint(0, 700, (40_000,))
    grads = torch.randn(len(ids), dim)
    table.apply_gradients(ids, grads)
    assert torch.equal(table.lookup(torch.arange(700)).rows_of(), _summed(ids, grads))


def test_rows_erased_and_born_again_over_many_tiles() -> None:
    table = make_table(dim=4)
    ids = torch.randperm(100_000)
    for turn in range(6):
        table.assign(ids, torch.full((len(ids), 4), float(turn)))
        assert table.size() == len(ids)
        assert bool((table.lookup(ids).rows == turn).all())
        gone = ids[torch.rand(len(ids)) < 0.5]
        assert bool(table.erase(gone).all())
        assert table.size() == len(ids) - len(gone)
    taken = table.memory()
    assert taken.slack_bytes < taken.row_bytes * 1.1  # erased rows were used again


def test_rows_that_a_call_did_not_use_are_given_back() -> None:
    table = make_table(dim=64, not_finite="drop")
    ids = torch.arange(50_000)
    rows = torch.ones(len(ids), 64)
    rows[20_000:] = torch.nan
    assert table.assign(ids, rows).dropped == 30_000
    assert table.size() == 20_000
    used = table.memory()
    assert used.slack_bytes < used.row_bytes / 10
    assert table.assign(ids[20_000:], rows[20_000:]).inserted == 0
    assert table.memory() == used
    table.assign(ids, torch.ones(len(ids), 64))
    assert bool((table.lookup(ids).rows == 1).all())
