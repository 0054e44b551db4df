"""What a server serves: a version of a model, as signatures that take and give named tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..core.errors import HedgerowError

if TYPE_CHECKING:
    from .followed import Followed

PREDICT_METHOD = "tensorflow/serving/predict"
DEFAULT_SIGNATURE = "serving_default"
Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A type and a shape; None fits any size.

    >>> TensorSpec(torch.int64, (None,)).takes(torch.zeros(3, dtype=torch.int64))
    True
    """

    dtype: torch.dtype
    shape: tuple[int | None, ...]

    def takes(self, tensor: Tensor) -> bool:
        """Whether a tensor is of it."""
        sizes = tensor.shape
        if tensor.dtype != self.dtype or len(sizes) != len(self.shape):
            return False
        for wanted, size in zip(self.shape, sizes, strict=True):  # a loop: it runs all the time
            if wanted is not None and wanted != size:
                return False
        return True


@dataclass(frozen=True, slots=True)
class Signature:
    """One thing a model can be asked. `run` may be called by many threads at once.

    With `batches` the inputs of several requests may be joined along their first size, and the
    outputs cut again; without it every request runs alone.
    """

    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    run: Callable[[Tensors], Tensors]
    batches: bool = False
    method: str = PREDICT_METHOD


@dataclass(frozen=True, slots=True)
class Model:
    """A version of a model, loaded. `close` frees it, after its last request.

    `followed` lets publishers keep it fresh.
    """

    name: str
    version: int
    signatures: Mapping[str, Signature]
    close: Callable[[], None] = field(default=lambda: None)
    followed: Followed | None = None


class ServingError(HedgerowError):
    """A request that is refused, with the code that RPCs know it by."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code  # as grpc.StatusCode names it: "INVALID_ARGUMENT"
