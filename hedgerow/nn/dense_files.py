"""The dense part of a checkpoint: a folder of `torch.distributed.checkpoint`, and its checksums."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from ..core.errors import CheckpointError, CheckpointMissingError, SaveError


def save_dense(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Writes tensors by name into a new folder."""
    try:
        with _quiet():
            save(dict(tensors), checkpoint_id=folder, no_dist=True)
    except CheckpointException as error:  # no Exception, but a BaseException
        raise SaveError(
            f"the dense part could not be saved to {folder}: {error}. An earlier checkpoint is "
            f"untouched; make room, or save elsewhere."
        ) from error


def load_dense(
    folder: Path, wanted: Mapping[str, Tensor], prefixes: tuple[str, ...]
) -> dict[str, Tensor]:
    """Copies of tensors by name: those of `wanted`, which say shape and type, and every other
    whose name begins with a prefix, in the shape it was saved in.
    """
    saved = FileSystemReader(folder).read_metadata().state_dict_metadata
    state = {name: torch.empty_like(tensor) for name, tensor in wanted.items()}
    for name, about in saved.items():
        if name.startswith(prefixes) and isinstance(about, TensorStorageMetadata):
            state.setdefault(name, torch.empty(about.size, dtype=about.properties.dtype))
    try:
        with _quiet():
            load(state, checkpoint_id=folder, no_dist=True)
    except CheckpointException as error:  # no Exception, but a BaseException
        raise CheckpointError(f"{folder} does not fit the model: {error}") from error
    return state


def checksums(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of the folder."""
    if not folder.is_dir():
        raise CheckpointMissingError(f"{folder} is missing; the manifest names it.")
    return {path.name: _checksum(path) for path in sorted(folder.iterdir())}


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the word that one process is one process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield
