"""The one place that imports Triton, and how its kernels are cut into programs."""

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

jit: Any = triton.jit  # the types of a kernel's arguments differ between its two sides


def interpreted() -> bool:
    """Whether kernels run in Python on CPU tensors (`TRITON_INTERPRET=1`), for tests."""
    return bool(knobs.runtime.interpret)


def blocks(n: int, rows: int) -> tuple[int]:
    """The grid of programs that work on `rows` of n each."""
    return (-(-n // rows),)


def several(tables: int) -> dict[str, int]:
    """What a kernel that serves so many tables wants to know."""
    return {"K": tables, "ROOM": 1 << (tables - 1).bit_length()}


def columns_of(dim: int) -> int:
    """The power of two that holds a row; at least the four words of a draw."""
    return max(4, 1 << (dim - 1).bit_length())


def reader_tile(dim: int) -> dict[str, int]:
    """The block of rows that one program of a reading kernel works on."""
    columns = columns_of(dim)
    return {"ROWS": max(1, min(32, 2048 // columns)), "COLUMNS": columns}


def wide_tile(n: int, dim: int, values: int = 2048) -> tuple[dict[str, int], tuple[int, int]]:
    """Blocks of n rows of any width, of about so many values, and their grid: rows by columns."""
    columns = min(256, columns_of(dim))
    rows = max(1, min(64, values // columns))
    return {"ROWS": rows, "COLUMNS": columns}, (-(-n // rows), -(-dim // columns))


def step_tile(dim: int, device: torch.device) -> tuple[dict[str, int], int]:
    """The block of rows that one program of a step works on at once, and how many programs.

    As many as the device runs together: they take block after block, since only the device knows
    how many there are.
    """
    columns = columns_of(dim)
    rows = max(1, min(32, 256 // columns))
    tile = {"ROWS": rows, "COLUMNS": columns, "num_warps": max(1, columns // 256)}
    return tile, programs_of(device)


def programs_of(device: torch.device) -> int:
    """How many small programs a device runs together; the interpreter has three, for tests."""
    if device.type != "cuda":
        return 3
    return 32 * torch.cuda.get_device_properties(device).multi_processor_count


def writer_tile(dim: int, floats: int = 1024) -> dict[str, int]:
    """The block of rows that one program of a writing kernel works on, and its warps.

    The buckets of the rows must give every thread a key of its own. Were there more threads than
    keys, several would load the same place; another program may change it between their loads,
    and warps that disagree about what they saw wait for each other for ever.
    """
    columns = columns_of(dim)
    rows = max(2, min(32, floats // columns))
    return {"ROWS": rows, "COLUMNS": columns, "num_warps": min(2, rows * LANES // 32)}
