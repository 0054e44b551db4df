"""Where a run stands: everything of the loop that a checkpoint must bring back."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

import torch

from ..core.errors import CheckpointError


@dataclass(slots=True)
class Progress:
    """Counts of the loop, and the best evaluation so far.

    >>> one, two = Progress(step=3, best_loss=0.5), Progress()
    >>> two.load_state_dict(one.state_dict())
    >>> two.step, two.best_loss
    (3, 0.5)
    """

    step: int = 0
    epoch: int = 0
    samples: int = 0
    evaluated_at: int = -1  # the step of the last evaluation
    best_loss: float | None = None
    worse: int = 0  # evaluations since the best one
    events: int = 0  # that sinks were given

    def state_dict(self) -> dict[str, Any]:
        """Its fields."""
        return asdict(self)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes what `state_dict` gave."""
        names = {field.name for field in fields(self)}
        if set(state_dict) != names:
            raise CheckpointError(f"{state_dict!r} is no progress of a run; it must have {names}.")
        for name, value in state_dict.items():
            of_loss = name == "best_loss"
            if not (type(value) is int or (of_loss and (value is None or type(value) is float))):
                kind = "a number or None" if of_loss else "a whole number"
                raise CheckpointError(f"progress: {name} is {value!r:.80}; it must be {kind}.")
        for name, value in state_dict.items():
            setattr(self, name, value)

    def note(self, loss: float) -> bool:
        """An evaluation; whether it is the best so far."""
        self.evaluated_at = self.step
        better = loss == loss and (self.best_loss is None or loss < self.best_loss)
        self.best_loss = loss if better else self.best_loss
        self.worse = 0 if better else self.worse + 1
        return better


class RandomState:
    """The generator that dropout and the like draw from."""

    def state_dict(self) -> dict[str, Any]:
        """Its state."""
        return {"torch": torch.get_rng_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes what `state_dict` gave."""
        torch.set_rng_state(state_dict["torch"])
