"""What a server serves: a version of a model, as signatures that take and give named tensors."""

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
class Joining:
    """How requests of a signature run together: inputs joined along their first size.

    `samples` is an input with one entry a sample. `cuts` says of each output how it is cut: by
    "samples", or by the output that tells how many entries each sample has. `check` raises for a
    request that must not be joined: two wrong ones may be right together.

    >>> Joining("x", {"y": "samples"}).check({})
    """

    samples: str
    cuts: Mapping[str, str]
    check: Callable[[Tensors], None] = field(default=lambda _: None)


@dataclass(frozen=True, slots=True)
class Signature:
    """One thing a model can be asked. `run` may be called by many threads at once.

    With `joining` requests that come together run as one; without it each runs alone.
    `answer_plain` is a shorter way for requests that are plain: from one, and the last bytes of its
    answer, it makes all bytes of the answer; or None, and `run` is asked.
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
        """The input with one entry a sample; where `joining` says none, the first."""
        return self.joining.samples if self.joining else next(iter(self.inputs), "")


@dataclass(frozen=True, slots=True)
class Model:
    """A version of a model, loaded. `close` frees it, after its last request.

    `followed` lets publishers keep it fresh.
    """

    name: str
    version: int
    signatures: Mapping[str, Signature]
    close: Callable[[], None] = field(default=lambda: None)
    followed: LiveModel | None = None


class ServingError(HedgerowError):
    """A request that is refused, with the code that RPCs know it by.

    >>> ServingError("NOT_FOUND", "no such model").code
    'NOT_FOUND'
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code  # as grpc.StatusCode names it: "INVALID_ARGUMENT"
