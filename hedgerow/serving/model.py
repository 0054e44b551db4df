"""A version of a model that a server serves: signatures with named input and output tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..core.errors import HedgerowError

if TYPE_CHECKING:
    from ..wire.predict import PlainRequest
    from .live_model import LiveModel

PREDICT_METHOD = "tensorflow/serving/predict"
DEFAULT_SIGNATURE = "serving_default"
Tensors = Mapping[str, Tensor]
AnswerPlain = Callable[["PlainRequest", bytes], "bytes | None"]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A dtype and a shape; a size of None fits any size.

    >>> TensorSpec(torch.int64, (None,)).takes(torch.zeros(3, dtype=torch.int64))
    True
    """

    dtype: torch.dtype
    shape: tuple[int | None, ...]

    def takes(self, tensor: Tensor) -> bool:
        """Returns whether a tensor has this dtype and shape."""
        sizes = tensor.shape
        if tensor.dtype != self.dtype or len(sizes) != len(self.shape):
            return False
        for wanted, size in zip(self.shape, sizes, strict=True):  # a loop: this is a hot path
            if wanted is not None and wanted != size:
                return False
        return True


@dataclass(frozen=True, slots=True)
class Joining:
    """How requests of a signature run together: inputs are joined along their first dimension.

    `samples` is an input with one entry per sample. `cuts` has the cut of each output: "samples",
    or the name of the output that has its number of entries per sample. `check` raises for a
    request that must not be joined: two invalid requests may be valid together.

    >>> Joining("x", {"y": "samples"}).check({})
    """

    samples: str
    cuts: Mapping[str, str]
    check: Callable[[Tensors], None] = field(default=lambda _: None)


@dataclass(frozen=True, slots=True)
class Signature:
    """A function of a model with named inputs and outputs. Many threads may call `run` at once.

    With `joining`, concurrent requests run as one; without it, each runs alone. `answer_plain` is
    a fast path for plain requests: it takes a request and the last bytes of its answer, and
    returns all bytes of the answer. If it returns None, `run` is called.
    """

    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    run: Callable[[Tensors], Tensors]
    joining: Joining | None = None
    method: str = PREDICT_METHOD
    answer_plain: AnswerPlain | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    pushes: bool = False

    def row_input(self) -> str:
        """Returns the input with one entry per sample; without `joining`, the first input."""
        return self.joining.samples if self.joining else next(iter(self.inputs), "")


@dataclass(frozen=True, slots=True)
class Model:
    """A loaded version of a model. `close` frees it after its last request.

    `followed` lets publishers update it.
    """

    name: str
    version: int
    signatures: Mapping[str, Signature]
    close: Callable[[], None] = field(default=lambda: None)
    followed: LiveModel | None = None


class ServingError(HedgerowError):
    """A refused request, with the code of its gRPC status.

    >>> ServingError("NOT_FOUND", "no such model").code
    'NOT_FOUND'
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code  # a name in grpc.StatusCode: "INVALID_ARGUMENT"
