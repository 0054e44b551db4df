"""Reads the dense part of version 0.1: a folder of `torch.distributed.checkpoint`.

Its metadata is a pickle, which may run any code. So it is read only for a caller who trusts it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from ..core.errors import CheckpointError
from ..tables.checkpoint.files import check_plain, chunks_of
from ..tables.checkpoint.sha256 import sha256_of


def check_folder(folder: Path, files: Mapping[str, str]) -> None:
    """The folder has exactly these files, with these checksums, and all of them are plain."""
    if folder.is_symlink() or not folder.is_dir():
        raise CheckpointError(f"{folder} is no folder; the manifest names one.")
    paths = sorted(folder.iterdir())
    for path in paths:
        check_plain(path)
    if {path.name: sha256_of(chunks_of(path)) for path in paths} != dict(files):
        raise CheckpointError(
            f"{folder} is damaged: its files are not those of the manifest. Use an older "
            f"checkpoint."
        )


def read_dcp(folder: Path, wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of the tensors of `wanted`, which says shape and type, and of all others."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    try:
        saved = FileSystemReader(folder).read_metadata().state_dict_metadata
        state = {name: torch.empty_like(tensor) for name, tensor in wanted.items()}
        for name, about in saved.items():
            if isinstance(about, TensorStorageMetadata):
                empty = torch.empty(about.size, dtype=about.properties.dtype)
                state.setdefault(name, empty)
        with warnings.catch_warnings():  # that one process is one process
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            load(state, checkpoint_id=folder, no_dist=True)
    except (CheckpointException, Exception) as error:  # the first is no Exception
        raise CheckpointError(f"{folder} does not fit the model: {error}") from error
    return state
