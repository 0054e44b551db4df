"""Argument checks of public calls. Each message names the value, the rule and the fix."""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Iterable, Mapping
from typing import NoReturn

import torch
from torch import Tensor

from .errors import ConfigError, DtypeError, InputError, UnknownNameError

LARGEST = 3.4028234663852886e38  # largest float32; rows, rates and settings are stored as float32
CPU = torch.device("cpu")
MAX_DIM = 65536  # columns of a row; a larger number is almost always a mistake in units


def tensor(
    name: str,
    value: Tensor,
    dtype: torch.dtype,
    shape: tuple[int | None, ...],
    device: torch.device | None = CPU,
) -> None:
    """Raises unless `value` is a contiguous tensor of `dtype` and `shape` on `device`.

    A None in the shape matches any size. None as the device matches any device.

    >>> tensor("ids", torch.tensor([1, 2]), torch.int64, (None,))
    """
    if not isinstance(value, Tensor):
        raise DtypeError(
            f"{name} is a {type(value).__name__}; pass a torch.Tensor of {dtype}, "
            f"for example torch.tensor(..., dtype={dtype})."
        )
    if value.dtype != dtype:
        raise DtypeError(
            f"{name} has dtype {value.dtype}, not {dtype}; convert it with .to({dtype})."
        )
    _place(name, value, device)
    plain = value.shape == shape or (shape == (None,) and value.dim() == 1)  # the common cases
    if not plain and not _fits(value.shape, shape):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise InputError(f"{name} has shape {tuple(value.shape)}; it must be ({wanted}).")


def _fits(sizes: torch.Size, shape: tuple[int | None, ...]) -> bool:
    return len(sizes) == len(shape) and all(
        want is None or have == want for have, want in zip(sizes, shape, strict=True)
    )


def _place(name: str, value: Tensor, device: torch.device | None) -> None:
    if device is not None and value.device != device:
        if device == CPU:
            raise InputError(
                f"{name} is on {value.device}; a host table takes CPU tensors: pass {name}.cpu()."
            )
        raise InputError(
            f"{name} is on {value.device}; this table is on {device}: pass "
            f"{name}.to({str(device)!r})."
        )
    if value.layout != torch.strided:
        raise InputError(f"{name} has layout {value.layout}; pass {name}.to_dense().")
    if not value.is_contiguous():
        raise InputError(
            f"{name} has strides {value.stride()}, which is not contiguous; "
            f"pass {name}.contiguous()."
        )
    if torch.compiler.is_compiling():  # a traced tensor has no memory
        return
    if value.is_neg():
        raise InputError(f"{name} is a lazily negated view; pass {name}.resolve_neg().")
    if value.numel() and not value.data_ptr():
        raise InputError(f"{name} has {value.numel()} values but no memory: its storage was freed.")


def count(name: str, value: int, *, least: int = 0) -> int:
    """Returns `value` as an int. Raises unless it is a whole number of at least `least`.

    >>> count("step", 3)
    3
    """
    if type(value) is int and least <= value < 2**63:  # fast path: the checks below are slower
        return value
    if not _is_whole(value):
        raise DtypeError(f"{name} is {value!r}; it must be an int.")
    if not least <= value < 2**63:
        raise InputError(f"{name} is {value}; it must lie in {least}..2**63-1.")
    return int(value)


def _is_whole(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _is_real(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def rate(name: str, value: float) -> float:
    """Returns `value` as a float. Raises unless it is at least 0 and finite in float32.

    >>> rate("rate", 0.1)
    0.1
    """
    if type(value) is float and 0 <= value <= LARGEST:
        return value
    if not _is_real(value):
        raise DtypeError(f"{name} is {value!r}; it must be a number.")
    if not 0 <= value <= LARGEST:
        raise InputError(f"{name} is {value!r}; a rate must lie in 0..{LARGEST:g}.")
    return float(value)


def mapping(name: str, value: object) -> None:
    """Raises unless `value` is a mapping, such as a dict of features by name.

    >>> mapping("features", [[1]])
    Traceback (most recent call last):
    hedgerow.core.errors.DtypeError: features is a list; pass a dict with the name of each feature.
    """
    if not isinstance(value, Mapping):
        raise DtypeError(
            f"{name} is a {type(value).__name__}; pass a dict with the name of each feature."
        )


def flag(name: str, value: bool) -> bool:
    """Returns `value`. Raises unless it is a bool; 0, 1 and other truthy values are refused.

    >>> flag("nesterov", True)
    True
    """
    if not isinstance(value, bool):
        raise DtypeError(f"{name} is {value!r}; it must be True or False.")
    return value


def setting(
    owner: str,
    name: str,
    value: float,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    below: float = math.inf,
) -> None:
    """Raises `ConfigError` unless `value` is a number within the bounds and finite in float32."""
    if not _is_real(value):
        raise ConfigError(f"{owner}.{name} is {value!r}; it must be a number.")
    if not abs(value) <= LARGEST or value < least or value <= above or value >= below:
        rules = [f"finite in float32 (at most {LARGEST:g})"] if abs(value) > LARGEST else ["finite"]
        if least > -math.inf:
            rules.append(f"at least {least:g}")
        if above > -math.inf:
            rules.append(f"above {above:g}")
        if below < math.inf:
            rules.append(f"below {below:g}")
        raise ConfigError(f"{owner}.{name} is {value!r}; it must be {' and '.join(rules)}.")


def whole(owner: str, name: str, value: int, *, least: int = 0) -> None:
    """Raises `ConfigError` unless `value` is a whole number of at least `least`."""
    if not _is_whole(value):
        raise ConfigError(f"{owner}.{name} is {value!r}; it must be a whole number.")
    if not least <= value < 2**63:
        raise ConfigError(f"{owner}.{name} is {value}; it must be at least {least}.")


def switch(owner: str, name: str, value: bool) -> None:
    """Raises `ConfigError` unless `value` is a bool."""
    if not isinstance(value, bool):
        raise ConfigError(f"{owner}.{name} is {value!r}; it must be True or False.")


def choice(owner: str, name: str, value: str, allowed: Iterable[str]) -> None:
    """Raises `ConfigError` unless `value` is one of the `allowed` words."""
    words = list(allowed)
    if value not in words:
        raise ConfigError(f"{owner}.{name} is {value!r}; it must be one of {', '.join(words)}.")


def unknown(kind: str, name: str, known: Iterable[str]) -> NoReturn:
    """Raises `UnknownNameError`. The message suggests the closest known name."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise UnknownNameError(f"unknown {kind} {name!r}; known: {', '.join(names)}.{hint}")
