"""Functions that look at values, which a compiled model therefore calls between two graphs."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch._compile import _disable_dynamo

P = ParamSpec("P")
R = TypeVar("R")


def outside_graphs(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which `torch.compile` calls as it is, between two graphs; an export traces it.

    Traced, it would break the graph in its middle, and be compiled again for new values. This is
    what `torch.compiler.disable` does, which imports the compiler at once, in seconds.

    >>> @outside_graphs
    ... def longest(lengths: torch.Tensor) -> int:
    ...     return int(lengths.max())
    >>> longest(torch.tensor([2, 5]))
    5
    """
    apart = _disable_dynamo(function)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_dynamo_compiling() and not torch.compiler.is_exporting():
            return apart(*args, **kwargs)
        return function(*args, **kwargs)

    return call
