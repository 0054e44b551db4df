"""The only import of Triton, and the sizes of programs and blocks."""

from __future__ import annotations

from typing import Any

import torch

from ..core.errors import MissingExtraError
from .layout import LANES

try:
    import triton
    import triton.language as tl
    from triton import knobs
except ImportError as error:
    raise MissingExtraError(
        f"tables on a device need Triton ({error}); pip install 'hedgerow[gpu]'."
    ) from error

__all__ = [
    "blocks",
    "columns_of",
    "interpreted",
    "jit",
    "programs_of",
    "reader_tile",
    "several",
    "step_tile",
    "tl",
    "wide_tile",
    "writer_tile",
]

jit: Any = triton.jit  # a kernel's argument types differ between caller and kernel


def interpreted() -> bool:
    """Returns whether kernels run in Python on CPU tensors (`TRITON_INTERPRET=1`), for tests."""
    return bool(knobs.runtime.interpret)


def blocks(n: int, rows: int) -> tuple[int]:
    """Returns the grid of programs that process `rows` of n items each."""
    return (-(-n // rows),)


def several(tables: int) -> dict[str, int]:
    """Returns the compile-time arguments of a kernel that serves this many tables."""
    return {"K": tables, "ROOM": 1 << (tables - 1).bit_length()}


def columns_of(dim: int) -> int:
    """Returns the power of two that holds a row, at least the four words of a draw."""
    return max(4, 1 << (dim - 1).bit_length())


def reader_tile(dim: int) -> dict[str, int]:
    """Returns the block of rows of one program of a reading kernel."""
    columns = columns_of(dim)
    return {"ROWS": max(1, min(32, 2048 // columns)), "COLUMNS": columns}


def wide_tile(n: int, dim: int, values: int = 2048) -> tuple[dict[str, int], tuple[int, int]]:
    """Returns blocks of n rows of any width with about `values` values, and their grid."""
    columns = min(256, columns_of(dim))
    rows = max(1, min(64, values // columns))
    return {"ROWS": rows, "COLUMNS": columns}, (-(-n // rows), -(-dim // columns))


def step_tile(dim: int, device: torch.device) -> tuple[dict[str, int], int]:
    """Returns the block of rows of one program of a step, and the number of programs.

    There are as many programs as run at once. They take block after block, because only the device
    knows the number of rows.
    """
    columns = columns_of(dim)
    rows = max(1, min(32, 256 // columns))
    tile = {"ROWS": rows, "COLUMNS": columns, "num_warps": max(1, columns // 256)}
    return tile, programs_of(device)


def programs_of(device: torch.device) -> int:
    """Returns how many small programs a device runs at once; 3 in the interpreter, for tests."""
    if device.type != "cuda":
        return 3
    return 32 * torch.cuda.get_device_properties(device).multi_processor_count


def writer_tile(dim: int, floats: int = 1024) -> dict[str, int]:
    """Returns the block of rows of one program of a writing kernel, and its warps.

    The buckets of the rows must give every thread a key of its own. With more threads than keys,
    several threads would load the same key. Another program may change it between their loads, and
    warps that disagree about its value wait for each other forever.
    """
    columns = columns_of(dim)
    rows = max(2, min(32, floats // columns))
    return {"ROWS": rows, "COLUMNS": columns, "num_warps": min(2, rows * LANES // 32)}
