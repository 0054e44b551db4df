"""State as torch's objects give it: tensors apart, and the rest as JSON holds it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NoReturn

from torch import Tensor

from ..core.errors import CheckpointError, InputError

_KEYS = (str, int, float, bool, type(None))
_FLOATS = ("inf", "-inf", "nan")


def take_apart(name: str, state: object) -> tuple[Any, list[Tensor]]:
    """`state` with a number in the place of each tensor, and the tensors.

    Dicts may have keys that are no strings, and tuples stay tuples: JSON alone keeps neither.

    >>> import torch
    >>> plain, tensors = take_apart("optimizer", {"state": {0: torch.ones(2)}, "betas": (0.9, 1)})
    >>> plain
    {'dict': [['state', {'dict': [[0, {'tensor': 0}]]}], ['betas', {'tuple': [0.9, 1]}]]}
    >>> put_together("optimizer", plain, tensors.__getitem__)
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
            return {"float": str(float(value))}
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise InputError(
            f"{path} is a {type(value).__name__}, which a checkpoint does not hold; state may have "
            f"tensors, numbers, strings, None, lists, tuples and dicts."
        )

    try:
        return plain(name, state), tensors
    except RecursionError as error:
        raise InputError(
            f"{name} is nested too deeply for a checkpoint, or holds itself."
        ) from error


def _key(path: str, key: object) -> str | int | float | bool | None:
    if isinstance(key, float) and not math.isfinite(key):
        raise InputError(f"{path} has the key {key!r}; keys may be strings and finite numbers.")
    if isinstance(key, _KEYS):
        return key
    raise InputError(f"{path} has the key {key!r}; keys may be strings and numbers.")


def put_together(name: str, plain: Any, tensor: Callable[[int], Tensor]) -> Any:
    """What `take_apart` was given; `tensor` gives those that it took out, by number."""
    try:
        return _whole(name, plain, tensor)
    except RecursionError as error:
        raise CheckpointError(f"{name} is nested too deeply; the checkpoint is damaged.") from error


def _whole(name: str, plain: Any, tensor: Callable[[int], Tensor]) -> Any:
    if plain is None or isinstance(plain, bool | int | float | str):
        return plain
    if not isinstance(plain, dict) or len(plain) != 1:
        _damaged(name, plain)
    ((kind, inner),) = plain.items()
    if kind == "tensor" and type(inner) is int and inner >= 0:
        return tensor(inner)
    if kind == "float" and inner in _FLOATS:
        return float(inner)
    if not isinstance(inner, list):
        _damaged(name, plain)
    if kind == "dict":
        for pair in inner:
            if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], _KEYS):
                _damaged(name, pair)
        return {key: _whole(name, value, tensor) for key, value in inner}
    if kind not in ("list", "tuple"):
        _damaged(name, plain)
    parts = [_whole(name, value, tensor) for value in inner]
    return parts if kind == "list" else tuple(parts)


def _damaged(name: str, plain: Any) -> NoReturn:
    shown = repr(plain)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    raise CheckpointError(f"{name} has {shown}, which is no state; the checkpoint is damaged.")
