"""Argument checks of ops. All raise a ValueError before any output is written.

Checks of a tensor's contents always run on the CPU. On a device they run only with `validate=True`,
because they block.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import DtypeError, InputError
from ..core.ids import check_splits
from ..core.shapes import Int64

WHOLE = (torch.int64, torch.int32)
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
ADDED_BY_CORE = (torch.float32, torch.float64)
"""Float types that the C++ core sums. Other types are summed by torch."""


def looks_inside(tensor: Tensor, validate: bool) -> bool:
    """Returns whether the contents are checked."""
    return validate or tensor.device.type == "cpu"


def tensor(name: str, value: Tensor) -> Tensor:
    """Returns `value`.

    Raises `DtypeError` unless it is a tensor; torch's own error is no ValueError.
    """
    if not isinstance(value, Tensor):
        raise DtypeError(f"{name} is a {type(value).__name__}; pass a torch.Tensor.")
    return value


def tensors(name: str, values: Sequence[Tensor]) -> list[Tensor]:
    """Returns `values` as a list. Raises unless every one is a tensor."""
    if isinstance(values, Tensor | str) or not isinstance(values, Sequence):
        raise DtypeError(f"{name} is a {type(values).__name__}; pass a list of tensors.")
    return [tensor(f"{name}[{i}]", value) for i, value in enumerate(values)]


def typed(
    name: str, value: Tensor, dtypes: Sequence[torch.dtype], shape: tuple[int | None, ...]
) -> Tensor:
    """Returns `value` as a contiguous tensor.

    Raises unless it has one of `dtypes` and fits `shape`.

    A None in the shape fits any size.

    >>> typed("ids", torch.tensor([1, 2]), WHOLE, (None,)).tolist()
    [1, 2]
    """
    tensor(name, value)
    if value.dtype not in dtypes:
        allowed = " or ".join(str(dtype) for dtype in dtypes)
        raise DtypeError(f"{name} has dtype {value.dtype}; it must be {allowed}.")
    fits = value.dim() == len(shape) and all(
        want is None or have == want for have, want in zip(value.shape, shape, strict=True)
    )
    if not fits:
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise InputError(f"{name} has shape {tuple(value.shape)}; it must be ({wanted}).")
    return value.resolve_neg().contiguous()


def widened(values: Tensor) -> Tensor:
    """Returns half types as float32, so that sums are rounded only once.

    >>> widened(torch.ones(1, dtype=torch.bfloat16)).dtype
    torch.float32
    """
    return values if values.dtype in ADDED_BY_CORE else values.float()


def on_device(number: float | Tensor, like: Tensor) -> Tensor:
    """Returns a number as a tensor with the device and dtype of `like`, without blocking.

    >>> on_device(0.5, torch.ones(1))
    tensor(0.5000)
    """
    if isinstance(number, Tensor) and number.device == like.device:
        return number.to(like.dtype)
    return torch.full((), float(number), dtype=like.dtype, device=like.device)


def one_place(**given: Tensor | Sequence[Tensor]) -> None:
    """Raises unless all arguments are on one device.

    Called before an op: with one tensor on "meta", torch would only infer sizes and check nothing.
    """
    first: tuple[str, Tensor] | None = None
    for name, value in given.items():
        for one in [value] if isinstance(value, Tensor) else value:
            if first is None:
                first = name, one
            together(*first, name, one)


def together(first: str, one: Tensor, second: str, other: Tensor) -> None:
    """Raises unless both tensors are on one device. Nothing is moved."""
    if one.device != other.device:
        raise InputError(
            f"{second} is on {other.device}, {first} on {one.device}; move one of them first."
        )


def in_range(name: str, values: Tensor, limit: int, validate: bool = False) -> None:
    """Raises unless all values are in [0, limit).

    >>> in_range("shard_ids", torch.tensor([0, 4]), 3)
    Traceback (most recent call last):
    hedgerow.core.errors.InputError: shard_ids holds 4; values must be in [0, 3).
    """
    if not looks_inside(values, validate) or not values.numel():
        return
    least, most = torch.aminmax(values)
    if int(least) < 0 or int(most) >= limit:
        wrong = int(least) if int(least) < 0 else int(most)
        raise InputError(f"{name} holds {wrong}; values must be in [0, {limit}).")


def row_splits(
    name: str, splits: Int64[Tensor, "rows+1"], values: int, validate: bool = False
) -> None:
    """Raises unless `splits` runs from 0 to `values` and never falls."""
    typed(name, splits, (torch.int64,), (None,))
    if splits.shape[0] == 0 or looks_inside(splits, validate):
        check_splits(name, splits, values)


def whole(name: str, value: int | Tensor) -> int:
    """Returns a 64-bit integer, also from a one-element tensor.

    A symbolic size is returned as it is.

    >>> whole("batch_size", torch.tensor([3]))
    3
    """
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.dtype not in WHOLE:
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
    """Returns integers as a list.

    >>> wholes("emb_lengths", torch.tensor([3, 4], dtype=torch.int32))
    [3, 4]
    """
    if isinstance(values, Tensor):
        return typed(name, values, WHOLE, (None,)).tolist()
    return [whole(f"{name}[{i}]", one) for i, one in enumerate(listed(name, values))]


def listed(name: str, values: Iterable[Any]) -> list[Any]:
    """Returns an iterable as a list. Raises for a string, a dict or a single tensor."""
    if isinstance(values, str | bytes | Tensor | dict) or not hasattr(values, "__iter__"):
        raise DtypeError(f"{name} is a {type(values).__name__}; pass a list.")
    return list(values)


def beside(first: str, one: Tensor, name: str, others: Sequence[Tensor]) -> None:
    """Raises unless every tensor of a list is on the device of `one`."""
    for i, other in enumerate(others):
        together(first, one, f"{name}[{i}]", other)


def reachable(first: str, one: Tensor, name: str, value: Tensor) -> None:
    """Raises unless `value` is on the CPU or on the device of `one`. It is read on the host."""
    if value.device.type != "cpu":
        together(first, one, name, value)
