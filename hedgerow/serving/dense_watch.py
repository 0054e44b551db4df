"""Looks after the dense weights of a model in training, to be sent as one consistent set."""

from __future__ import annotations

import threading
import time
from typing import Any

import torch
from torch import nn

from ..nn.collection import undressed
from ..sync.dense import DenseState


class DenseWatch:
    """Copies the weights at most every `every_s`, between two steps. Owns a lock.

    A training forward begins when the step before it is complete: that is when they are copied, by
    the thread that trains. The weights after the last step are copied by `copy_now`.
    """

    def __init__(self, model: nn.Module, every_s: float) -> None:
        self._model, self._every_s = undressed(model), every_s
        self._lock = threading.Lock()
        self._state: DenseState | None = None
        self._due_s = 0.0
        self._hook = model.register_forward_pre_hook(self._before_forward)

    def state(self) -> DenseState | None:
        """The last copy; None before the first."""
        return self._state

    def copy_now(self) -> None:
        """Copies the weights; call it between two steps."""
        with self._lock, torch.no_grad():
            number = 1 if self._state is None else self._state.number + 1
            tensors = {**dict(self._model.named_parameters()), **dict(self._model.named_buffers())}
            if self._state is not None and _equal(self._state, tensors):
                return
            copies = {name: t.detach().cpu().clone() for name, t in tensors.items()}
            self._state = DenseState(number, copies)

    def close(self) -> None:
        """Looks no more."""
        self._hook.remove()

    def _before_forward(self, module: nn.Module, _: Any) -> None:
        now_s = time.monotonic()
        if module.training and now_s >= self._due_s:
            self._due_s = now_s + self._every_s
            self.copy_now()


def _equal(state: DenseState, tensors: dict[str, Any]) -> bool:
    return all(torch.equal(state.weights[name], t.detach().cpu()) for name, t in tensors.items())
