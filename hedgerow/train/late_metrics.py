"""Metrics of predictions on a device, looked at when somebody asks: a step must not wait."""

from __future__ import annotations

from torch import Tensor

from .metrics import Metrics

_MOST = 1000  # batches that wait; then all are looked at


class LateMetrics:
    """Hands batches to `metrics`: those of the CPU at once, those of a device with `settle`.

    What is not finite on a device is refused then, up to a line of the log later.

    >>> import torch
    >>> metrics = Metrics()
    >>> LateMetrics(metrics).update(torch.zeros(2), torch.tensor([0.0, 1.0]), None)
    >>> metrics.result()["samples"]
    2.0
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._waiting: list[tuple[Tensor, Tensor, Tensor | None]] = []

    def update(self, logits: Tensor, labels: Tensor, weights: Tensor | None) -> None:
        """Adds a batch."""
        if logits.device.type == "cpu":
            self._metrics.update(logits, labels, weights)
            return
        self._waiting.append((logits.detach(), labels, weights))
        if len(self._waiting) >= _MOST:
            self.settle()

    def settle(self) -> None:
        """Looks at what waits; waits for the device."""
        waiting, self._waiting = self._waiting, []
        for batch in waiting:
            self._metrics.update(*batch)
