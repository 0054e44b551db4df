"""A model on disk: rows in the tables' format, the dense rest by `torch.distributed.checkpoint`."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..core.errors import CheckpointError, CheckpointMissingError
from ..tables.checkpoint.load import Loaded, check_rules, load_tables
from ..tables.checkpoint.manifest import Manifest
from ..tables.checkpoint.manifest_reader import read_manifest
from ..tables.checkpoint.save import save_tables
from .collection import collections_of
from .dense_files import checksums, load_dense, save_dense
from .routers import routers_of
from .summary import tables_of
from .trees import put_together, take_apart

_DENSE, _FILES, _UPDATES, _EXTRAS = "dense", "dense_sha256", "updates", "extras"


class Stateful(Protocol):
    """What can be saved beside a model: a scheduler, a data source, metrics."""

    def state_dict(self) -> dict[str, Any]:
        """Tensors, numbers, strings, None; lists, tuples and dicts of them."""
        ...

    def load_state_dict(self, state: Any, /) -> Any:
        """Takes what `state_dict` gave."""
        ...


def save(
    model: nn.Module,
    path: str | PathLike[str],
    *,
    optimizer: torch.optim.Optimizer | None = None,
    extras: Mapping[str, Stateful] | None = None,
    step: int = 0,
    metadata: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> Manifest:
    """Saves rows, dense weights and the optimizer's state into a folder, whole or not at all.

    `extras` are other objects with a state, by name. `metadata` is anything that JSON holds, given
    back by `load`. What an earlier save left in the folder counts until this one is complete.

    >>> import tempfile, hedgerow as hr
    >>> model = hr.EmbeddingBags([hr.Table("user", 2)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = hr.save(model, folder + "/step-7", step=7, metadata={"epoch": 1})
    ...     hr.load(model, folder + "/step-7").step
    7
    """
    tables, folder = tables_of(model), Path(path)
    states, tensors = _taken_apart(_every(optimizer, extras))
    tensors.update({f"model.{name}": value for name, value in model.state_dict().items()})
    was_there = folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    dense = folder / f"{_DENSE}-{secrets.token_hex(6)}"
    try:
        save_dense(tensors, dense)
        about = {
            "user": dict(metadata or {}),
            _DENSE: dense.name,
            _FILES: checksums(dense),
            _UPDATES: [one.updates.step for one in collections_of(model)],
            _EXTRAS: states,
        }
        manifest = save_tables(
            tables.values(),
            folder,
            router=routers_of(model),
            step=step,
            metadata=about,
            overwrite=overwrite,
        )
    except BaseException:
        if not _is_complete(folder, dense):  # Ctrl-C may come when all is written
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
    extras: Mapping[str, Stateful] | None = None,
    reroute: bool = False,
) -> Loaded:
    """Loads what `save` wrote; nothing of the model changes before every byte was proved.

    What was saved and is not asked for stays where it is: a model alone can be loaded from the
    checkpoint of a training run. A table that was saved under another `dist_type` is refused,
    unless `reroute` is set: its rows then go by the new rule. Rows are read by a strict reader. The
    dense part is torch's own format, which holds pickles: load only what you trust.
    """
    folder, wanted = Path(path), _every(optimizer, extras)
    manifest, routers = read_manifest(folder), routers_of(model)
    about, collections = manifest.metadata, collections_of(model)
    _check(folder, about, wanted, len(collections))
    check_rules(manifest, routers, reroute=reroute)  # here, too: before anything takes its state
    weights = {f"model.{name}": value for name, value in model.state_dict().items()}
    prefixes = tuple(f"{name}." for name in wanted)
    state = load_dense(folder / str(about[_DENSE]), weights, prefixes)
    for name, value in wanted.items():  # first, since they may refuse, and hold no rows
        value.load_state_dict(_put_together(name, about[_EXTRAS][name], state))
    loaded = load_tables(folder, tables_of(model).values(), router=routers, reroute=reroute)
    model.load_state_dict({name.removeprefix("model."): state[name] for name in weights})
    for one, updates in zip(collections, about[_UPDATES], strict=True):
        one.updates.step = updates
    return loaded


def _is_complete(folder: Path, dense: Path) -> bool:
    """Whether the folder's checkpoint is the one with this dense part."""
    try:
        return read_manifest(folder).metadata.get(_DENSE) == dense.name
    except CheckpointError:
        return False


def _every(
    optimizer: torch.optim.Optimizer | None, extras: Mapping[str, Stateful] | None
) -> dict[str, Stateful]:
    found: dict[str, Stateful] = {f"extra.{name}": value for name, value in (extras or {}).items()}
    return found if optimizer is None else {"optimizer": optimizer, **found}


def _taken_apart(every: Mapping[str, Stateful]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    states: dict[str, Any] = {}
    tensors: dict[str, Tensor] = {}
    for name, value in every.items():
        states[name], found = take_apart(name, value.state_dict())
        tensors.update({f"{name}.{i}": tensor for i, tensor in enumerate(found)})
    return states, tensors


def _put_together(name: str, plain: Any, state: Mapping[str, Tensor]) -> Any:
    tensors: list[Tensor] = []
    while f"{name}.{len(tensors)}" in state:  # another's name may begin with this one and a dot
        tensors.append(state[f"{name}.{len(tensors)}"])
    return put_together(plain, tensors)


def _check(folder: Path, about: Mapping[str, Any], wanted: Mapping[str, Any], modules: int) -> None:
    """The checkpoint is whole, and of such a model with such extras."""
    if _DENSE not in about:
        raise CheckpointMissingError(
            f"{folder} holds tables without a model; load them with hr.load_tables."
        )
    dense = folder / str(about[_DENSE])
    if checksums(dense) != about[_FILES]:
        raise CheckpointError(
            f"{dense} is damaged: its files are not those of the manifest. Use an older checkpoint."
        )
    if len(about[_UPDATES]) != modules:
        raise CheckpointError(
            f"{folder} is of a model with {len(about[_UPDATES])} modules of tables; this one has "
            f"{modules}."
        )
    for name in wanted:
        if name not in about[_EXTRAS]:
            raise CheckpointError(
                f"{folder} was saved without {name.replace('extra.', 'extras: ')}; load without it."
            )
