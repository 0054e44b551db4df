"""A PredictRequest whose tensors are plain buffers, as most clients send it, read in few steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from .. import native
from . import dtypes
from .buffers import Array
from .codec import from_bytes
from .dtypes import ElementType
from .messages import tf_serving

if TYPE_CHECKING:
    from .messages.tf_serving import PredictRequest

_INT64 = dtypes.of_torch(torch.int64).number
_FLOAT32 = dtypes.of_torch(torch.float32).number
# The number of the element type, the shape, and where the values stand: from which byte, how many.
PlainInput = tuple[int, tuple[int, ...], int, int]


class PlainRequest(NamedTuple):
    """What was asked, over the request's own bytes."""

    data: bytes
    model: str
    version: int | None
    signature: str
    inputs: dict[str, PlainInput]

    @staticmethod
    def read(data: bytes) -> PlainRequest | None:
        """None for a message that is not plain: a parser reads it, or says what is wrong.

        The fields of a plain one are few, so it needs no screen.

        >>> import torch
        >>> from hedgerow.wire.tensors import fill
        >>> request = tf_serving.PredictRequest(model_spec={"name": "ctr"})
        >>> fill(request.inputs["id"], torch.tensor([7, 8]))
        >>> asked = PlainRequest.read(request.SerializeToString())
        >>> asked.model, asked.inputs["id"][:2]
        ('ctr', (9, (2,)))
        >>> PlainRequest.read(b"no message") is None
        True
        """
        found = native.plain_request(data)
        return None if found is None else PlainRequest(data, *found)

    def message(self) -> PredictRequest:
        """The same as a parser gives it."""
        return from_bytes(tf_serving.PredictRequest, self.data)

    def array(
        self, alias: str, element: ElementType, shape: tuple[int | None, ...]
    ) -> Array | None:
        """An input of just this type and shape, flat and read-only; None where it is another.

        None in `shape` fits any size.
        """
        if alias not in self.inputs or not element.is_plain:
            return None
        number, sizes, start, size_bytes = self.inputs[alias]
        if number != element.number or len(sizes) != len(shape):
            return None
        count, reach = 1, element.width
        for size, wanted in zip(sizes, shape, strict=True):
            if size < 0 or (size != wanted and wanted is not None):
                return None
            count *= size
            reach *= size or 1  # beside a size of 0 others may be beyond all addresses
        if count * element.width != size_bytes or reach >= 1 << 63:
            return None
        return np.frombuffer(self.data, element.bits, size_bytes // element.width, start)

    def int64s(self, alias: str) -> tuple[int, int] | None:
        """Where a vector of int64 begins, and its length; None where it is another tensor."""
        number, sizes, start, size_bytes = self.inputs.get(alias, (0, (), 0, 0))
        if number != _INT64 or len(sizes) != 1 or 8 * sizes[0] != size_bytes:
            return None
        return start, sizes[0]

    def float_rows(self, alias: str, dim: int) -> tuple[int, int] | None:
        """Where rows of `dim` float32 begin, and how many; None where it is another tensor."""
        number, sizes, start, size_bytes = self.inputs.get(alias, (0, (), 0, 0))
        if number != _FLOAT32 or len(sizes) != 2 or sizes[1] != dim or sizes[0] < 0:
            return None
        return (start, sizes[0]) if 4 * sizes[0] * dim == size_bytes else None
