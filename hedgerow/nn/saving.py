"""A model on disk: rows in the tables' format, the dense rest by `torch.distributed.checkpoint`."""

from __future__ import annotations

import hashlib
import secrets
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load as load_dense
from torch.distributed.checkpoint.state_dict_saver import save as save_dense

from ..core.errors import CheckpointError, CheckpointMissingError, SaveError
from ..tables.checkpoint.load import Loaded, load_tables
from ..tables.checkpoint.manifest import Manifest
from ..tables.checkpoint.manifest_reader import read_manifest
from ..tables.checkpoint.save import save_tables
from .collection import collections_of
from .summary import tables_of

_DENSE, _FILES, _UPDATES = "dense", "dense_sha256", "updates"


def save(
    model: nn.Module,
    path: str | PathLike[str],
    *,
    optimizer: torch.optim.Optimizer | None = None,
    step: int = 0,
    metadata: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> Manifest:
    """Saves rows, dense weights and the optimizer's state into a folder, whole or not at all.

    `metadata` is anything that JSON holds, given back by `load`. What an earlier save left in the
    folder counts until this one is complete.

    >>> import tempfile, hedgerow as hr
    >>> model = hr.EmbeddingBags([hr.Table("user", 2)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = hr.save(model, folder + "/step-7", step=7, metadata={"epoch": 1})
    ...     hr.load(model, folder + "/step-7").step
    7
    """
    tables, folder = tables_of(model), Path(path)
    was_there = folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    dense = folder / f"{_DENSE}-{secrets.token_hex(6)}"
    try:
        with _quiet():
            _save_dense(_state(model, optimizer), dense)
        about = {
            "user": dict(metadata or {}),
            _DENSE: dense.name,
            _FILES: _checksums(dense),
            _UPDATES: [one.updates.step for one in collections_of(model)],
        }
        manifest = save_tables(
            tables.values(), folder, step=step, metadata=about, overwrite=overwrite
        )
    except BaseException:
        shutil.rmtree(dense, ignore_errors=True)
        if not was_there and folder.exists() and not any(folder.iterdir()):
            folder.rmdir()
        raise
    for old in folder.glob(f"{_DENSE}-*"):
        if old != dense:
            shutil.rmtree(old)
    return manifest


def load(
    model: nn.Module,
    path: str | PathLike[str],
    *,
    optimizer: torch.optim.Optimizer | None = None,
) -> Loaded:
    """Loads what `save` wrote; nothing of the model changes before every byte was proved.

    Rows are read by a strict reader. The dense part is torch's own format, which holds pickles:
    load only what you trust.
    """
    folder = Path(path)
    about = read_manifest(folder).metadata
    if _DENSE not in about:
        raise CheckpointMissingError(
            f"{folder} holds tables without a model; load them with hr.load_tables."
        )
    dense = folder / str(about[_DENSE])
    if _checksums(dense) != about[_FILES]:
        raise CheckpointError(
            f"{dense} is damaged: its files are not those of the manifest. Use an older checkpoint."
        )
    collections = collections_of(model)
    if len(about[_UPDATES]) != len(collections):
        raise CheckpointError(
            f"{folder} is of a model with {len(about[_UPDATES])} modules of tables; this one has "
            f"{len(collections)}."
        )
    state = _state(model, optimizer)
    try:
        with _quiet():
            load_dense(state, checkpoint_id=dense, no_dist=True)
    except CheckpointException as error:  # no Exception, but a BaseException
        raise CheckpointError(f"{dense} does not fit the model: {error}") from error
    loaded = load_tables(folder, tables_of(model).values())
    model.load_state_dict(state["model"])
    if optimizer is not None:
        optimizer.load_state_dict(state["optimizer"])
    for one, updates in zip(collections, about[_UPDATES], strict=True):
        one.updates.step = updates
    return loaded


def _save_dense(state: dict[str, Any], folder: Path) -> None:
    try:
        save_dense(state, checkpoint_id=folder, no_dist=True)
    except CheckpointException as error:  # no Exception, but a BaseException
        raise SaveError(
            f"the dense part could not be saved to {folder}: {error}. An earlier checkpoint is "
            f"untouched; make room, or save elsewhere."
        ) from error


def _state(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> dict[str, Any]:
    """Copies: a load that fails half way has changed nothing."""
    state = {"model": {k: v.clone() for k, v in model.state_dict().items()}}
    return state if optimizer is None else {**state, "optimizer": optimizer.state_dict()}


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the word that one process is one process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _checksums(folder: Path) -> dict[str, str]:
    if not folder.is_dir():
        raise CheckpointMissingError(f"{folder} is missing; the manifest names it.")
    return {path.name: _checksum(path) for path in sorted(folder.iterdir())}


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
