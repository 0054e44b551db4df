"""The dense graph of a bundle of release 0.1: a file of torch.export, which can hold code."""

from __future__ import annotations

from pathlib import Path

import torch

from ..core.errors import FileDamagedError, HedgerowError
from ..nn.read_op import ReadableRows
from .dense_program import DenseProgram
from .graph_writer import plain_graph
from .program import make_program, output_names


def read_old_program(path: Path, inputs: list[str], rows: ReadableRows) -> tuple[DenseProgram, str]:
    """As read_program(). Only for files whose makers are trusted: torch unpickles them."""
    try:
        program = torch.export.load(path)
        written = plain_graph(program, output_names(program))
    except HedgerowError:
        raise
    except Exception as error:  # torch raises whatever its readers meet
        raise FileDamagedError(
            f"{path} is no program that torch {torch.__version__} loads: {error}. Export again."
        ) from error
    return make_program(written, inputs, rows)
