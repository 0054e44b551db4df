"""Tensors and arrays as flat bytes and back, without a copy where none is needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import DtypeError, InputError
from . import dtypes, sizes
from .dtypes import ElementType

Array = np.ndarray[Any, np.dtype[Any]]
_SMALL_BYTES = 16 << 10  # below this a copy takes less time than making a view


def flat_bits(name: str, value: Tensor | Array) -> tuple[ElementType, Array]:
    """The element type of numbers, and their bytes in row-major order as a flat array of `bits`."""
    if isinstance(value, Tensor):
        return _of_tensor(name, value)
    if not isinstance(value, np.ndarray):
        raise DtypeError(
            f"{name} is a {type(value).__name__}; pass a torch.Tensor or a numpy array, "
            "for example torch.tensor(...)."
        )
    element = dtypes.of_numpy(value.dtype)
    sizes.check_sendable(name, value.nbytes)
    native = value if element.numpy is None else value.astype(element.numpy, copy=False)
    return element, np.ascontiguousarray(native).reshape(-1).view(element.bits)


def _of_tensor(name: str, value: Tensor) -> tuple[ElementType, Array]:
    element = dtypes.of_torch(value.dtype)
    if element.numpy is not None and _is_plain(value):  # in few steps: what most servers send
        bits = value.numpy() if element.is_plain else value.numpy().view(element.bits)
        sizes.check_sendable(name, bits.nbytes)
        return element, bits if bits.ndim == 1 else bits.reshape(-1)
    if value.layout != torch.strided:
        raise InputError(f"{name} has layout {value.layout}; pass {name}.to_dense().")
    if value.device.type == "meta":
        raise InputError(f"{name} is on the meta device, without values; pass a real tensor.")
    sizes.check_sendable(name, value.nbytes)
    plain = value.detach().cpu().resolve_conj().resolve_neg().reshape(-1)
    if plain.stride(0) != 1:  # also of one element, which torch calls contiguous at any stride
        plain = plain.clone(memory_format=torch.contiguous_format)
    return element, plain.view(torch.uint8).numpy().view(element.bits)


def _is_plain(value: Tensor) -> bool:
    """Whether numpy may look at a tensor's memory as it is."""
    return (
        value.is_cpu
        and value.layout == torch.strided
        and value.is_contiguous()
        and not value.requires_grad
        and not value.is_conj()
        and not value.is_neg()
    )


def as_numpy(name: str, element: ElementType, bits: Array, shape: tuple[int, ...]) -> Array:
    """The array over these bits."""
    if element.numpy is None:
        raise DtypeError(
            f"{name} has element type {element.name}, which numpy does not have; read it as a "
            "torch tensor."
        )
    return bits.view(element.numpy).reshape(shape)


def as_torch(element: ElementType, bits: Array, shape: tuple[int, ...]) -> Tensor:
    """The tensor over these bits; one that can be written to, so never write to a shared one."""
    if not bits.size:
        return torch.empty(shape, dtype=element.torch)
    if element.is_plain and bits.nbytes <= _SMALL_BYTES:  # in few steps: what most clients send
        tensor = torch.from_numpy(bits.copy())
        return tensor if len(shape) == 1 else tensor.reshape(shape)
    plain = bits.view(np.uint8)
    if plain.flags.writeable:
        tensor = torch.from_numpy(plain)
    elif plain.nbytes <= _SMALL_BYTES or not bits.flags.aligned:
        tensor = torch.from_numpy(plain.copy())
    else:
        tensor = _over_read_only(plain)
    return tensor.view(element.torch).reshape(shape)


def _over_read_only(plain: Array) -> Tensor:
    """A view of bytes that Python calls constant: only the one reader of a message holds them."""
    try:
        return torch.from_dlpack(plain)
    except (BufferError, TypeError):  # numpy before 2.1 hands out nothing that is read-only
        return torch.from_numpy(plain.copy())


def as_bools(bits: Array) -> Array:
    """Bytes that are 0 or 1: any other would be a bool that is neither true nor false."""
    return (bits != 0).view(np.uint8) if bits.size and bits.max() > 1 else bits


def is_text(value: object) -> bool:
    """An array of strings or bytes."""
    return isinstance(value, np.ndarray) and value.dtype.kind in "OSU"


def flat_strings(name: str, value: Array) -> list[bytes]:
    """The strings of an array in row-major order; text becomes UTF-8."""
    found = [item.encode() if isinstance(item, str) else item for item in value.reshape(-1)]
    wrong = next((item for item in found if not isinstance(item, bytes)), None)
    if wrong is not None:
        raise DtypeError(f"{name} holds {wrong!r}; an array of objects may hold bytes and str.")
    return found


def as_strings(items: list[bytes], shape: tuple[int, ...]) -> Array:
    """An array of bytes objects: torch has no strings."""
    found = np.empty(len(items), dtype=object)
    found[:] = items
    return found.reshape(shape)
