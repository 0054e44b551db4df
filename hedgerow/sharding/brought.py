"""What comes to the owners of rows."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..core.shapes import Float32, Int64
from ..tables.store import TableKeys


@dataclass(frozen=True, slots=True, eq=False)
class Brought:
    """Gradients that came to their owner: an id stands once for every rank that sent it."""

    keys: TableKeys
    grads: Float32[Tensor, "floats"]
    counts: Int64[Tensor, "n"]  # occurrences
    everywhere: int  # gradients that all ranks brought, whoever owns their rows
    uses: tuple[int, ...]  # occurrences in each table on all ranks
    not_finite: tuple[int, ...]  # ranks that sent a NaN or an infinity; the same on all of them
    given: bool  # whether any rank has a gradient, be it of no row
