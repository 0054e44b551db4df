"""What an update may do to one row: how long its gradient may be, and whether it must be finite."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..core import checks
from ..core.shapes import Float32


@dataclass(frozen=True, slots=True)
class ClipRow:
    """Scales the summed gradient of a row down to this norm, if it is longer.

    >>> ClipRow(2.5).clipped(torch.tensor([[3.0, 4.0], [0.6, 0.8]]))
    tensor([[1.5000, 2.0000],
            [0.6000, 0.8000]])
    """

    norm: float

    def __post_init__(self) -> None:
        checks.setting("ClipRow", "norm", self.norm, above=0)

    def clipped(self, grads: Float32[Tensor, "n dim"]) -> Float32[Tensor, "n dim"]:
        """Summed gradients of rows, none longer than the limit."""
        length = torch.linalg.vector_norm(grads, dim=1, keepdim=True)
        return grads * (self.norm / length.clamp(min=self.norm))


@dataclass(frozen=True, slots=True)
class UpdatePolicy:
    """How a store treats the gradients of an update.

    The store applies the policy where the whole gradient of a row is known: at the row's owner. A
    gradient that is not finite stops the update before any row changes, of tables whose
    `TableConfig.not_finite` is "reject"; over ranks it stops the update of all ranks. With "drop"
    all tables leave such rows out and count them.

    >>> UpdatePolicy(clip=ClipRow(1.0)).rejects, UpdatePolicy(not_finite="drop").rejects
    (True, False)
    """

    clip: ClipRow | None = None
    not_finite: Literal["reject", "drop"] = "reject"

    @property
    def rejects(self) -> bool:
        """Whether a gradient that is not finite may stop an update."""
        return self.not_finite == "reject"


PLAIN = UpdatePolicy()
"""No limit; tables refuse what is not finite as their configs say."""
