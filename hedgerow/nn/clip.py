"""A limit on what one update may do to one row."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from ..core import checks

if TYPE_CHECKING:
    from .updates import RowGradients


@dataclass(frozen=True, slots=True)
class ClipRow:
    """Scales the summed gradient of a row down to this norm, if it is longer.

    >>> from hedgerow.nn.updates import RowGradients
    >>> one = RowGradients(torch.tensor([7, 8]), torch.tensor([[3.0, 4.0], [0.6, 0.8]]))
    >>> ClipRow(2.5)(one).grads
    tensor([[1.5000, 2.0000],
            [0.6000, 0.8000]])
    """

    norm: float

    def __post_init__(self) -> None:
        checks.setting("ClipRow", "norm", self.norm, above=0)

    def __call__(self, gradients: RowGradients) -> RowGradients:
        """The same rows, none longer than the limit."""
        length = torch.linalg.vector_norm(gradients.grads, dim=1, keepdim=True)
        factor = self.norm / length.clamp(min=self.norm)
        return replace(gradients, grads=gradients.grads * factor)
