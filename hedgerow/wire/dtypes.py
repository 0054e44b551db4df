"""Element types: their names in torch, numpy, TensorFlow and KServe, and their message fields."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from dataclasses import field as attribute
from typing import NoReturn

import numpy as np
import torch

from ..core.errors import DtypeError

STRING = 7  # TensorFlow's number of strings, the only element type without a width
BYTES = "BYTES"  # KServe's name of strings


@dataclass(frozen=True, slots=True)
class ElementType:
    """An element type.

    `bits` is a little-endian numpy type with the same bytes; `numpy` is None if numpy lacks the
    type. `field` of a TensorProto and `contents` of a KServe tensor are the fields for typed
    values. KServe has no typed contents for some types.
    """

    name: str
    number: int
    field: str
    bits: str
    numpy: str | None
    kserve: str | None = None
    contents: str | None = None
    torch: torch.dtype = attribute(init=False)
    width: int = attribute(init=False)  # bytes of one element

    def __post_init__(self) -> None:
        object.__setattr__(self, "torch", getattr(torch, self.name))
        object.__setattr__(self, "width", np.dtype(self.bits).itemsize)

    @property
    def is_plain(self) -> bool:
        """Whether `bits` is the type itself, so that bytes need no conversion."""
        return self.bits == self.numpy

    @property
    def parts(self) -> int:
        """The number of typed values per element: two for complex numbers."""
        return 2 if self.name.startswith("complex") else 1


ELEMENTS = (
    ElementType("float32", 1, "float_val", "<f4", "<f4", "FP32", "fp32_contents"),
    ElementType("float64", 2, "double_val", "<f8", "<f8", "FP64", "fp64_contents"),
    ElementType("int32", 3, "int_val", "<i4", "<i4", "INT32", "int_contents"),
    ElementType("uint8", 4, "int_val", "u1", "u1", "UINT8", "uint_contents"),
    ElementType("int16", 5, "int_val", "<i2", "<i2", "INT16", "int_contents"),
    ElementType("int8", 6, "int_val", "i1", "i1", "INT8", "int_contents"),
    ElementType("complex64", 8, "scomplex_val", "<c8", "<c8"),
    ElementType("int64", 9, "int64_val", "<i8", "<i8", "INT64", "int64_contents"),
    ElementType("bool", 10, "bool_val", "u1", "?", "BOOL", "bool_contents"),
    ElementType("bfloat16", 14, "half_val", "<u2", None, "BF16"),
    ElementType("uint16", 17, "int_val", "<u2", "<u2", "UINT16", "uint_contents"),
    ElementType("complex128", 18, "dcomplex_val", "<c16", "<c16"),
    ElementType("float16", 19, "half_val", "<u2", "<f2", "FP16"),
    ElementType("uint32", 22, "uint32_val", "<u4", "<u4", "UINT32", "uint_contents"),
    ElementType("uint64", 23, "uint64_val", "<u8", "<u8", "UINT64", "uint64_contents"),
    ElementType("float8_e5m2", 24, "float8_val", "u1", None),
    ElementType("float8_e4m3fn", 25, "float8_val", "u1", None),
)
_BY_NAME = {element.name: element for element in ELEMENTS}
_BY_TORCH = {element.torch: element for element in ELEMENTS}
_BY_NUMBER = {element.number: element for element in ELEMENTS}
_BY_KSERVE = {element.kserve: element for element in ELEMENTS if element.kserve}


def of_torch(dtype: torch.dtype) -> ElementType:
    """Returns the element type of a torch tensor.

    >>> of_torch(torch.int64).number
    9
    """
    return _BY_TORCH.get(dtype) or _unknown(f"a tensor of {dtype}", _BY_NAME)


def of_numpy(dtype: np.dtype) -> ElementType:
    """Returns the element type of a numpy array; types of other packages are found by name."""
    return _BY_NAME.get(dtype.name) or _unknown(f"an array of {dtype}", _BY_NAME)


def of_number(number: int) -> ElementType:
    """Returns the element type with a number of TensorFlow's."""
    found = _BY_NUMBER.get(number)
    if found is None:
        _unknown(f"dtype {number}", (f"{known.number} ({known.name})" for known in ELEMENTS))
    return found


def of_kserve(datatype: str) -> ElementType:
    """Returns the element type with a datatype name of KServe's."""
    return _BY_KSERVE.get(datatype) or _unknown(f"datatype {datatype!r}", _BY_KSERVE)


def _unknown(what: str, known: Iterable[str]) -> NoReturn:
    raise DtypeError(f"{what} cannot be carried; convert it to one of: {', '.join(known)}.")
