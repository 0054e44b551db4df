"""What an update takes from its lookups changes no number, in any placement."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from hedgerow.nn.embedding_modules import collections_of
from tests.dist.pool import Pool
from tests.dist.test_placements import on_servers

from . import counts_work as work

Rows = dict[tuple[int, str, int], Tensor]


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    made = Pool(2, tmp_path_factory.mktemp("values"))
    yield made
    made.close()


def _rows_after(modules: Any, kind: str, *, forgets: bool = False) -> Rows:
    with work.forgetting() if forgets else nullcontext():
        for n in range(3):
            work.step(modules, kind, 4 * n)
    return work.rows_of(modules)


@pytest.fixture(scope="module")
def alone() -> dict[str, Rows]:
    """Of one process that remembers nothing of its lookups."""
    return {kind: _rows_after(work.model(kind), kind, forgets=True) for kind in work.KINDS}


def _are_close(rows: Rows, wanted: Rows) -> None:
    assert rows.keys() == wanted.keys()
    assert rows
    for key, row in wanted.items():
        torch.testing.assert_close(rows[key], row, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", work.KINDS)
def test_in_host_memory(alone: dict[str, Rows], kind: str) -> None:
    rows = _rows_after(work.model(kind), kind)
    assert rows.keys() == alone[kind].keys()
    assert all(torch.equal(row, alone[kind][key]) for key, row in rows.items())


@pytest.mark.parametrize("kind", work.KINDS)
def test_on_a_device(alone: dict[str, Rows], kind: str) -> None:
    def placed() -> Any:
        modules = work.model(kind)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        for one in collections_of(modules):
            one.place(device, capacity_rows=dict.fromkeys(one.store.names, 64))
        return modules

    rows = _rows_after(placed(), kind)
    searched_again = _rows_after(placed(), kind, forgets=True)
    assert rows.keys() == searched_again.keys()
    assert all(torch.equal(row, searched_again[key]) for key, row in rows.items())
    _are_close({key: row.cpu() for key, row in rows.items()}, alone[kind])


@pytest.mark.parametrize("kind", work.KINDS)
def test_over_ranks(pool: Pool, alone: dict[str, Rows], kind: str) -> None:
    for forgets in (False, True):
        rows: Rows = {}
        for own in pool.run(2, work.rows_over_ranks, kind, forgets):
            assert not rows.keys() & own.keys()
            rows |= own
        _are_close(rows, alone[kind])


@pytest.mark.parametrize("kind", work.KINDS)
def test_on_servers(alone: dict[str, Rows], kind: str) -> None:
    with on_servers(work.model(kind), 2) as spread:
        _are_close(_rows_after(spread, kind), alone[kind])
