"""Shares of a batch and their losses: together they are the whole, however unequal."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from torch.nn import functional

import hedgerow as hr
from hedgerow.core.errors import InputError
from hedgerow.data.source import Batch
from hedgerow.train.metrics import BinaryMetrics
from hedgerow.train.run_ranks import RunRanks, _packed, _unpacked


def _batch(samples: int, *, weighted: bool) -> Batch:
    generator = torch.Generator().manual_seed(samples)
    ids = hr.IdBatch.from_lists(
        {"user": [[i] for i in range(samples)], "seen": [[i] * (i % 3) for i in range(samples)]},
        {"seen": [[float(i)] * (i % 3) for i in range(samples)]},
    )
    labels = torch.randint(0, 2, (samples,), generator=generator).float()
    weights = torch.rand(samples, generator=generator) if weighted else None
    return Batch(torch.rand(samples, 2, generator=generator), ids, labels, weights)


def _ranks(rank: int, count: int) -> RunRanks:
    model = hr.EmbeddingBags([hr.Table("user", 2)])
    model.ranks = mock.Mock(rank=rank, count=count)
    return RunRanks(model)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("samples", [12, 10, 2])
def test_losses_of_all_shares_average_to_that_of_the_whole(samples: int, weighted: bool) -> None:
    batch = _batch(samples, weighted=weighted)
    logits = torch.randn(samples, generator=torch.Generator().manual_seed(1))
    ranks = [_ranks(rank, 3) for rank in range(3)]
    shares = [one.share(batch) for one in ranks]
    assert hr.IdBatch.concat([share.ids for share in shares]).feature("seen").to_lists() == (
        batch.ids.feature("seen").to_lists()
    )
    assert torch.equal(torch.cat([share.labels for share in shares]), batch.labels)
    assert torch.equal(torch.cat([share.dense for share in shares]), batch.dense)
    sizes = [share.samples for share in shares]
    assert max(sizes) - min(sizes) <= 1
    parts = logits.split(sizes)
    losses = [
        one.loss(part, share, batch) for one, part, share in zip(ranks, parts, shares, strict=True)
    ]
    weights = batch.weights
    whole = functional.binary_cross_entropy_with_logits(logits, batch.labels, reduction="none")
    mean = whole.mean() if weights is None else (whole * weights).sum() / weights.sum()
    torch.testing.assert_close(torch.stack(losses).mean(), mean)
    torch.testing.assert_close(_ranks(0, 1).loss(logits, batch, batch), mean)


def test_a_part_has_the_weights_of_its_ids_and_lies_inside() -> None:
    batch = _batch(5, weighted=True)
    part = batch.part(1, 3)
    assert part.ids.weights_of("seen") is not None
    assert part.ids.weights_of("seen").tolist() == [1.0, 2.0, 2.0]  # pyright: ignore[reportOptionalMemberAccess]
    assert batch.part(5, 5).samples == 0
    for start, stop in ((-1, 2), (3, 2), (0, 6)):
        with pytest.raises(InputError, match=f"part {start}..{stop} of 5 samples"):
            batch.part(start, stop)


def test_metrics_travel_whole() -> None:
    metrics = BinaryMetrics()
    metrics.update(torch.randn(50, generator=torch.Generator().manual_seed(1)), torch.ones(50))
    metrics.update(torch.tensor([0.0, -3e9]), torch.zeros(2))
    packed = _packed(metrics)
    assert len(packed["at"]) <= 52
    again = _unpacked(packed).state_dict()
    for name, value in metrics.state_dict().items():
        assert torch.equal(again[name], value)
