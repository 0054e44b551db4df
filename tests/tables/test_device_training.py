"""A device table and a host table trained on the same batches stay together; tests/gpu: longer."""

from __future__ import annotations

import pytest
import torch

from .device_training import SEVEN, train_both


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == "adam" else (pytest.mark.long,)) for n in SEVEN]
)
def test_training_on_a_device_is_training_on_the_host(device: torch.device, name: str) -> None:
    _, losses = train_both(SEVEN[name], device, steps=6, batch=40, ids=30, dim=4)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
