"""How modules that read and write tables behave under `torch.compile` and `torch.export`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

from ..core.errors import StateError
from ..core.outside_graphs import outside_graphs

P = ParamSpec("P")
R = TypeVar("R")


def between_graphs(forward: Callable[P, R]) -> Callable[P, R]:
    """A forward that compiled models call as it is, between two graphs, and no export takes.

    It reads tables and notes what to update: nothing that a graph can hold.
    """
    apart = outside_graphs(forward)

    @wraps(forward)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.compiler.is_exporting():
            raise StateError(
                "torch.export of a model whose tables can be written; export hr.freeze(model)."
            )
        return apart(*args, **kwargs)

    return call
