"""State as torch's objects give it: tensors apart, and the rest as JSON holds it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..core.errors import CheckpointError, InputError


def take_apart(name: str, state: object) -> tuple[Any, list[Tensor]]:
    """`state` with a number in the place of each tensor, and the tensors.

    Dicts may have keys that are no strings, and tuples stay tuples: JSON alone keeps neither.

    >>> import torch
    >>> plain, tensors = take_apart("optimizer", {"state": {0: torch.ones(2)}, "betas": (0.9, 1)})
    >>> plain
    {'dict': [['state', {'dict': [[0, {'tensor': 0}]]}], ['betas', {'tuple': [0.9, 1]}]]}
    >>> put_together(plain, tensors)
    {'state': {0: tensor([1., 1.])}, 'betas': (0.9, 1)}
    """
    tensors: list[Tensor] = []

    def plain(path: str, value: object) -> Any:
        if isinstance(value, Tensor):
            tensors.append(value.detach())
            return {"tensor": len(tensors) - 1}
        if isinstance(value, dict):
            pairs = [[_key(path, k), plain(f"{path}[{k!r}]", v)] for k, v in value.items()]
            return {"dict": pairs}
        if isinstance(value, list | tuple):
            kind = "list" if isinstance(value, list) else "tuple"
            return {kind: [plain(f"{path}[{i}]", v) for i, v in enumerate(value)]}
        if isinstance(value, float) and not math.isfinite(value):
            return {"float": str(value)}
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise InputError(
            f"{path} is a {type(value).__name__}, which a checkpoint does not hold; state may have "
            f"tensors, numbers, strings, None, lists, tuples and dicts."
        )

    return plain(name, state), tensors


def _key(path: str, key: object) -> str | int | float | bool | None:
    if key is None or isinstance(key, bool | int | float | str):
        return key
    raise InputError(f"{path} has the key {key!r}; keys may be strings and numbers.")


def put_together(plain: Any, tensors: Sequence[Tensor]) -> Any:
    """What `take_apart` was given."""
    if not isinstance(plain, dict):
        return plain
    if len(plain) != 1:
        raise CheckpointError(f"{plain!r} is no state of a checkpoint; it is damaged.")
    ((kind, inner),) = plain.items()
    if kind == "tensor":
        return tensors[inner]
    if kind == "float":
        return float(inner)
    if kind == "dict":
        return {key: put_together(value, tensors) for key, value in inner}
    if kind in ("list", "tuple"):
        parts = [put_together(value, tensors) for value in inner]
        return parts if kind == "list" else tuple(parts)
    raise CheckpointError(f"{plain!r} is no state of a checkpoint; it is damaged.")
