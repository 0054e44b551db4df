"""Gradient clipping by several norms, and delay compensation of asynchronous gradients.

Every function returns new tensors and does not change its input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import checks
from ..core.shapes import Float32


@dataclass(frozen=True, slots=True)
class Clipped:
    """Clipped gradients, in the order given."""

    dense: list[Tensor]
    sparse: list[Tensor]


def global_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Returns the 2-norm of all values of all tensors.

    >>> float(global_norm([torch.tensor([3.0]), torch.tensor([4.0])]))
    5.0
    """
    if not tensors:
        return torch.zeros(())
    return torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(t) for t in tensors]))


def _limit(name: str, value: float) -> float:
    checks.setting("clip", name, value, least=0)
    return value


def _scaled(tensors: Sequence[Tensor], norm: Tensor, limit: float) -> list[Tensor]:
    if limit == 0:  # the first step of a warm-up
        return [torch.zeros_like(t) for t in tensors]
    factor = limit / torch.clamp(norm, min=limit)
    return [t * factor for t in tensors]


def clip_by_global_norm(
    dense: Sequence[Tensor],
    sparse: Sequence[Tensor],
    clip_norm: float,
    sparse_clip_norm: float | None = None,
) -> Clipped:
    """Clips by one norm over all gradients. Sparse gradients may have their own limit.

    >>> one = torch.ones(1)
    >>> clip_by_global_norm([one], [torch.ones(3)], 1.0).dense
    [tensor([0.5000])]
    """
    norm = global_norm([*dense, *sparse])
    sparse_limit = clip_norm if sparse_clip_norm is None else sparse_clip_norm
    return Clipped(
        _scaled(dense, norm, _limit("clip_norm", clip_norm)),
        _scaled(sparse, norm, _limit("sparse_clip_norm", sparse_limit)),
    )


def clip_separately(
    dense: Sequence[Tensor],
    sparse: Sequence[Tensor],
    clip_norm: float,
    sparse_clip_norm: float | None = None,
) -> Clipped:
    """Clips dense and sparse gradients by separate norms.

    Sparse gradients are unchanged if `sparse_clip_norm` is None.
    """
    clipped = _scaled(dense, global_norm(dense), _limit("clip_norm", clip_norm))
    if sparse_clip_norm is None:
        return Clipped(clipped, list(sparse))
    limit = _limit("sparse_clip_norm", sparse_clip_norm)
    return Clipped(clipped, _scaled(sparse, global_norm(sparse), limit))


def clip_by_value(tensors: Sequence[Tensor], limit: float) -> list[Tensor]:
    """Clips every value to [-limit, limit].

    >>> clip_by_value([torch.tensor([-3.0, 0.5])], 1.0)
    [tensor([-1.0000,  0.5000])]
    """
    limit = _limit("limit", limit)
    return [t.clamp(-limit, limit) for t in tensors]


def clip_by_norm(tensors: Sequence[Tensor], clip_norm: float) -> list[Tensor]:
    """Scales every tensor so that its own norm is at most `clip_norm`."""
    limit = _limit("clip_norm", clip_norm)
    return [_scaled([t], torch.linalg.vector_norm(t), limit)[0] for t in tensors]


def warmed_up_limit(limit: float, step: int, warmup_steps: int) -> float:
    """Returns a sparse limit that grows linearly until `warmup_steps`.

    >>> warmed_up_limit(1.0, 3, 10), warmed_up_limit(1.0, 50, 10)
    (0.3, 1.0)
    """
    return limit * step / warmup_steps if step < warmup_steps else limit


def delay_compensation(
    g: Float32[Tensor, "..."],
    w: Float32[Tensor, "..."],
    w_latest: Float32[Tensor, "..."],
    lam: float,
) -> Float32[Tensor, "..."]:
    """Returns `g + lam * g**2 * (w - w_latest)`, which replaces `g` in the optimizer.

    >>> import torch
    >>> delay_compensation(torch.tensor([10.0]), torch.tensor([0.0]), torch.tensor([0.1]), 0.1)
    tensor([9.])
    """
    return g + lam * g * g * (w - w_latest)
