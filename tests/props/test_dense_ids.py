"""Ids that fill ranges of numbers: found by the id itself, with the rows that any id would have."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hedgerow import native
from hedgerow.tables.host import HostTable

from ..support import isa, make_table, threads

_DIM = 16
_RANGE = 1 << 16  # ids that share an array of the core


def _rows_of(ids: Tensor) -> Tensor:
    return (ids.float() + 1).unsqueeze(1).expand(-1, _DIM).contiguous()


@pytest.mark.parametrize("name", native.isas())
def test_every_instruction_set_gives_the_rows_that_were_assigned(name: str) -> None:
    table = make_table(dim=_DIM)
    ids = torch.arange(3 * _RANGE) - 1000  # the first are negative: in no array
    order = ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(1))]
    with isa(name), threads(2):
        table.assign(order, _rows_of(order))
        out = torch.zeros(600_000, _DIM)  # large enough for stores past the caches
        for asked in (torch.arange(600_000) // 4, order.repeat(4)[:600_000], order.repeat(2)):
            for _ in range(2):  # learned, then known
                found = table.lookup(asked, out=out[: len(asked)]).rows_of()
                assert torch.equal(found, _rows_of(asked))
            assert torch.equal(table.lookup(asked).rows_of(), _rows_of(asked))
        absent = torch.arange(3 * _RANGE, 4 * _RANGE)
        assert not table.lookup(absent).rows_of().any()
        assert table.contains(torch.cat([ids, absent])).sum() == len(ids)


def _rows_and_index(table: HostTable) -> int:
    use = table.memory()
    return use.total_bytes - use.other_bytes  # others: what the process keeps for reuse


def test_a_counter_whose_old_ids_leave_takes_no_more_memory() -> None:
    table = make_table(dim=_DIM)
    live = _RANGE
    table.assign(torch.arange(live), _rows_of(torch.arange(live)))
    before = _rows_and_index(table)
    for at in range(0, 6 * live, live // 4):
        old, new = torch.arange(at, at + live // 4), torch.arange(at + live, at + live + live // 4)
        assert bool(table.erase(old).all())
        table.assign(new, _rows_of(new))
        around = torch.arange(max(0, at - live), at + 2 * live)
        here = (around >= at + live // 4) & (around < at + live + live // 4)
        expected = torch.where(here.unsqueeze(1), _rows_of(around), torch.zeros(1))
        assert torch.equal(table.lookup(around).rows_of(), expected)
    assert table.size() == live
    assert _rows_and_index(table) < 1.3 * before


def test_sparse_ids_have_no_array() -> None:
    table = make_table(dim=_DIM)
    ids = torch.arange(20_000) * 3  # a third of a range
    table.assign(ids, _rows_of(ids))
    sparse = table.memory().index_bytes
    filled = torch.arange(_RANGE)
    table.assign(filled, _rows_of(filled))
    assert table.memory().index_bytes >= sparse + 4 * _RANGE
    table.clear()
    assert table.memory().index_bytes == 0
