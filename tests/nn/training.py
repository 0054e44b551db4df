"""Trains a small model of click probabilities."""

from __future__ import annotations

from collections.abc import Iterable

import torch

import hedgerow as hr


def train(
    model: torch.nn.Module, batches: Iterable[tuple[hr.IdBatch, torch.Tensor]]
) -> list[float]:
    """One step a batch, dense weights by SGD; the losses, to be compared bit for bit."""
    dense = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for ids, label in batches:
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(ids), label)
        dense.zero_grad()
        loss.backward()
        dense.step()
        losses.append(loss.item())
    return losses
