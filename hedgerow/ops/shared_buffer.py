"""A flat buffer that several parts fill before it becomes a tensor."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import native
from ..core.errors import InputError
from ..core.shapes import Float
from . import arguments
from .offsets import ValueOffset


class SharedBuffer:
    """Owns its tensor until `close` hands it out; not thread-safe.

    It is filled in place. Gradients flow through what was filled, to the values of every part.

    >>> buffer = SharedBuffer.zeros(3)
    >>> buffer.tensor.tolist(), buffer.closed
    ([0.0, 0.0, 0.0], False)
    """

    __slots__ = ("_keeps_base", "_map", "_seen", "_tensor")

    def __init__(self, tensor: Float[Tensor, "floats"]) -> None:
        arguments.typed("tensor", tensor, arguments.FLOATS, (None,))
        if not tensor.is_contiguous():
            raise InputError("tensor is not contiguous; a buffer is filled in place: pass a copy.")
        if tensor.is_neg():
            raise InputError("tensor is a lazily negated view; pass tensor.resolve_neg().")
        base = tensor._base
        if tensor.requires_grad and (tensor.is_leaf or (base is not None and base.is_leaf)):
            raise InputError(
                "tensor is a leaf that requires a gradient, or a view of one, which cannot be "
                "filled in place; pass tensor.clone()."
            )
        self._tensor: Tensor | None = tensor
        self._keeps_base = tensor.requires_grad
        self._map: ValueOffset | None = None
        self._seen: Tensor | None = None

    @classmethod
    def zeros(
        cls,
        floats: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> SharedBuffer:
        """Of so many zeros."""
        return cls(torch.zeros(floats, dtype=dtype, device=device))

    @property
    def tensor(self) -> Float[Tensor, "floats"]:
        """What has been filled so far."""
        if self._tensor is None:
            raise InputError("the buffer was finalized; fill and finalize another one.")
        return self._tensor

    @property
    def closed(self) -> bool:
        """Whether the tensor has been handed out."""
        return self._tensor is None

    def close(self) -> Float[Tensor, "floats"]:
        """Hands out the tensor; nothing can be filled after that."""
        tensor = self.tensor
        self._tensor = self._map = self._seen = None
        return tensor

    def overlaps(self, keys: Tensor, where: ValueOffset) -> bool:
        """Whether a part may write where an earlier one wrote, or one key twice; it is remembered.

        Told of parts on the CPU with one map of offsets; of others it is not known, and so True.
        """
        if self.tensor.device.type != "cpu":
            return True
        if self._map is None:
            self._map = where
            self._seen = torch.zeros(where.inner_row_splits.shape[0] - 1, dtype=torch.uint8)
        if self._seen is None or not _same(self._map, where):
            self._seen = None
            return True
        return native.mark_keys(keys.data_ptr(), keys.shape[0], self._seen.data_ptr())

    @property
    def keeps_base(self) -> bool:
        """Whether what was there before the first part has a gradient of its own."""
        return self._keeps_base


def _same(one: ValueOffset, other: ValueOffset) -> bool:
    return one.values is other.values and one.inner_row_splits is other.inner_row_splits
