"""The work of the layout benchmark, and its chain of torch's ops, against a dumb reading of it."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from benchmarks.ops_layout_cases import LENGTH, WIDTHS, LayoutWork, chain, make_work


def _entries(work: LayoutWork) -> list[list[list[tuple[int, int]]]]:
    """(list, first float) of every id, by feature and entry."""
    starts = [word & 0x7FFFFFFF for word in work.nfl_offset.tolist()]
    borders, words = work.feature_offset.tolist(), work.fid_offset.tolist()
    return [
        [
            [(word >> 32, word & 0xFFFFFFFF) for word in words[a:b]]
            for a, b in pairwise(borders[first : last + 1])
        ]
        for first, last in pairwise(starts)
    ]


def _expected(work: LayoutWork) -> list[Tensor]:
    """Section 7.4, id by id."""
    kinds: dict[str, list[Tensor]] = {"FIRSTN": [], "MEAN": [], "SUM": []}
    for one, entries in zip(work.features, _entries(work), strict=True):
        width = WIDTHS[one.table]
        rows = []
        for b in range(work.batch):
            ids = entries[0] if one.shared else entries[b]
            vectors = [work.embeddings[at][o : o + width] for at, o in ids]
            if one.pooling == "FIRSTN":
                zeros = [torch.zeros(width)] * LENGTH
                rows.append(torch.stack([*vectors, *zeros][:LENGTH]))
            else:
                total = torch.stack(vectors).sum(0)
                rows.append(total / len(vectors) if one.pooling == "MEAN" else total)
        kinds[one.pooling].append(torch.stack(rows))
    return [*kinds["FIRSTN"], *kinds["MEAN"], torch.cat(kinds["SUM"], dim=1)]


@pytest.mark.parametrize(("features", "shards"), [(11, 5), (7, 3)])
def test_the_chain_computes_what_the_encoding_says(features: int, shards: int) -> None:
    work = make_work(batch=6, features=features, shards=shards)
    ours, wanted = chain(work), _expected(work)
    assert [one.shape for one in ours] == [one.shape for one in wanted]
    fed = [torch.randn_like(one) for one in ours]
    for one, other in zip(ours, wanted, strict=True):
        torch.testing.assert_close(one, other)
    grads = torch.autograd.grad(ours, work.embeddings, fed)
    for one, other in zip(grads, torch.autograd.grad(wanted, work.embeddings, fed), strict=True):
        torch.testing.assert_close(one, other)


def test_the_work_is_that_of_the_specification() -> None:
    work = make_work(batch=256, features=199, shards=5)
    assert [one.pooling for one in work.features].count("FIRSTN") == 100
    assert sum(one.shared for one in work.features) in (99, 100)
    lengths = torch.cat([one.lengths for one in work.features])
    assert (int(lengths.min()), int(lengths.max())) == (1, 6)
    assert {len(one.lengths) for one in work.features} == {1, 256}
    assert len(work.embeddings) == len(WIDTHS) * 5
