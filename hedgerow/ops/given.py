"""Arguments that are not one tensor: whole numbers, lists of them and lists of tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import DtypeError, InputError
from . import arguments


def whole(name: str, value: int | Tensor) -> int:
    """A whole number of 64 bits, also from a tensor of one; a symbol of a compiled program stays.

    >>> whole("batch_size", torch.tensor([3]))
    3
    """
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.dtype not in arguments.WHOLE:
            raise InputError(
                f"{name} is a tensor of {value.dtype} and shape {tuple(value.shape)}; it is "
                f"one whole number."
            )
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | np.integer | torch.SymInt):
        raise DtypeError(f"{name} is {value!r}; it must be an int.")
    if torch.compiler.is_compiling():
        return value
    if not -(2**63) <= value < 2**63:
        raise InputError(f"{name} is {value}; it must fit 64 bits.")
    return int(value) if isinstance(value, np.integer) else value


def wholes(name: str, values: Iterable[int] | Tensor) -> list[int]:
    """Whole numbers as a list.

    >>> wholes("emb_lengths", torch.tensor([3, 4], dtype=torch.int32))
    [3, 4]
    """
    if isinstance(values, Tensor):
        return arguments.typed(name, values, arguments.WHOLE, (None,)).tolist()
    return [whole(f"{name}[{i}]", one) for i, one in enumerate(listed(name, values))]


def listed(name: str, values: Iterable[Any]) -> list[Any]:
    """A list, a tuple or what else has entries, as a list; a text or one tensor is none."""
    if isinstance(values, str | bytes | Tensor | dict) or not hasattr(values, "__iter__"):
        raise DtypeError(f"{name} is a {type(values).__name__}; pass a list.")
    return list(values)


def beside(first: str, one: Tensor, name: str, others: Sequence[Tensor]) -> None:
    """Every tensor of a list is on the device of `one`."""
    for i, other in enumerate(others):
        arguments.together(first, one, f"{name}[{i}]", other)


def reachable(first: str, one: Tensor, name: str, value: Tensor) -> None:
    """Numbers that are read on the host: they may be there, or on the device of `one`."""
    if value.device.type != "cpu":
        arguments.together(first, one, name, value)
