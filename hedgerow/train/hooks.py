"""What a training loop calls at its start and after its steps, for whoever wants to know."""

from __future__ import annotations

from typing import Any, Protocol

from torch import nn


class RunHook(Protocol):
    """Called by the training loop on every rank, in the same order.

    >>> class Counts:
    ...     steps = 0
    ...     def on_start(self, model, optimizer, step): self.steps = step
    ...     def after_step(self, step, samples): self.steps = step
    >>> import torch, hedgerow as hr
    >>> from hedgerow.train.loop import Trainer
    >>> model, counts = hr.models.DeepFM([hr.Table("user", 4)], dense=4), Counts()
    >>> optimizer = torch.optim.Adam(model.parameters())
    >>> source = hr.data.clicks(batch_size=64, steps=3)
    >>> _ = Trainer(model, optimizer, source, hooks=[counts]).run()
    >>> counts.steps
    3
    """

    def on_start(self, model: nn.Module, optimizer: Any, step: int) -> None:
        """Before the first step of `Trainer.run`; `step` steps were taken before."""
        ...

    def after_step(self, step: int, samples: int) -> object:
        """After each step; `step` and `samples` count over the whole training.

        The training loop ignores the result.
        """
        ...
