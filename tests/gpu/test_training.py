"""200 steps of training on the GPU give the rows of 200 steps on the host, for every optimizer."""

from __future__ import annotations

import pytest
import torch

from ..tables.device_training import OF_MONOLITH, SEVEN, train_both


@pytest.mark.parametrize("name", [*SEVEN, *OF_MONOLITH])
def test_200_steps(device: torch.device, name: str) -> None:
    optimizer = {**SEVEN, **OF_MONOLITH}[name]
    table, losses = train_both(optimizer, device, steps=200, batch=2000, ids=3000, dim=16)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[0] < 1.0  # of random targets, whose mean square is 1: it has learnt
    assert table.size() > 2900
