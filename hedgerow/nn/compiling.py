"""How modules that read and write tables behave under `torch.compile` and `torch.export`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch._compile import _disable_dynamo

from ..core.errors import StateError

P = ParamSpec("P")
R = TypeVar("R")


def outside_graphs(forward: Callable[P, R]) -> Callable[P, R]:
    """A forward that compiled models call as it is, between two graphs, and no export takes.

    It reads tables and notes what to update: nothing that a graph can hold. What
    `torch.compiler.disable` does is the same, but it imports the compiler at once, in seconds.
    """
    apart = _disable_dynamo(forward)

    @wraps(forward)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_exporting():
            raise StateError(
                "torch.export of a model whose tables can be written; export hr.freeze(model)."
            )
        if torch.compiler.is_dynamo_compiling():
            return apart(*args, **kwargs)
        return forward(*args, **kwargs)

    return call
