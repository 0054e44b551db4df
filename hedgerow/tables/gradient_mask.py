"""Admission without a table: gradients of ids that a filter drops become zeros."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..core import checks
from ..core.errors import DtypeError, InputError
from ..core.hashing import id64
from ..core.shapes import Float, Int64
from .admission import Admission
from .filters import SlidingFilter


class GradientMask:
    """Gives rows through unchanged; on the way back, rows of ids not yet admitted get no gradient.

    Every backward counts each occurrence once, in order. A rule that only a table can decide, since
    it asks about absent ids without counting them (`Chance`), masks nothing.

    >>> from hedgerow.tables.admission import Count
    >>> mask = GradientMask(Count(2), name="user")
    >>> rows, ids = torch.ones(3, 1, requires_grad=True), torch.tensor([5, 6, 5])
    >>> mask(rows, ids).sum().backward()
    >>> rows.grad.flatten().tolist()
    [0.0, 0.0, 1.0]
    """

    def __init__(self, admit: Admission, *, name: str, filter: SlidingFilter | None = None) -> None:
        if not isinstance(admit, Admission):
            raise DtypeError(f"admit is {admit!r}; it must be an admission rule, as hr.Count(3).")
        self.filter = filter or admit.own_filter(id64(name, "table seed") & (2**64 - 1))
        self._rule = None
        if self.filter is not None and not admit.needs_step:
            self._rule = admit.rule(table=name, seed=0, filter=self.filter)

    def __call__(
        self, rows: Float[Tensor, "n dim"], ids: Int64[Tensor, "n"]
    ) -> Float[Tensor, "n dim"]:
        """`rows`, whose gradients will be masked by `ids`."""
        checks.tensor("ids", ids, torch.int64, (None,))
        if not isinstance(rows, Tensor) or rows.dim() < 1 or len(rows) != len(ids):
            shape = tuple(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
            raise InputError(f"rows is {shape} for {len(ids)} ids; pass a tensor with a row an id.")
        return _Masked.apply(rows, ids, self)  # pyright: ignore[reportReturnType]

    def admitted(self, ids: Int64[Tensor, "n"]) -> Tensor:
        """Counts every id once, in order, and says which are admitted."""
        checks.tensor("ids", ids, torch.int64, (None,))  # what counts reads memory unchecked
        out = torch.ones_like(ids, dtype=torch.bool)
        if self._rule is not None:
            self._rule.ask(ids.data_ptr(), 0, len(ids), 0, out.data_ptr())
        return out


class _Masked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, ids: Tensor, mask: GradientMask) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.mask = mask
        return rows.view_as(rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (ids,) = ctx.saved_tensors
        kept = ctx.mask.admitted(ids).to(grad.device)
        return torch.where(kept.view(-1, *[1] * (grad.dim() - 1)), grad, 0), None, None
