"""Trains with a rate that is a little too high."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.peers.subject import serve
from benchmarks.peers.training import SparseBags


class WrongTraining(SparseBags):
    def adagrad(self, parameters: list[Any]) -> torch.optim.Optimizer:
        optimizer = super().adagrad(parameters)
        optimizer.param_groups[0]["lr"] *= 1.05
        return optimizer


if __name__ == "__main__":
    serve(WrongTraining)
