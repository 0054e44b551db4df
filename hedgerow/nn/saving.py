"""A model on disk: rows in the tables' format, the dense rest by `torch.distributed.checkpoint`."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..core.errors import CheckpointError, CheckpointMissingError
from ..core.local_path import local_path
from ..sharding.agreement import Ranks
from ..tables.checkpoint.load_job import Loaded, LoadJob
from ..tables.checkpoint.manifest import Manifest
from ..tables.checkpoint.manifest_reader import read_manifest
from ..tables.checkpoint.save import save_tables
from .collection import collections_of, ranks_of, servers_of, undressed
from .dense_files import checksums, load_dense, save_dense
from .routers import routers_of
from .server_saving import load_on_servers, save_on_servers
from .shared_saving import save_over_ranks
from .summary import tables_of
from .trees import put_together, take_apart

_MODEL = "model."
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

    Of a distributed model every rank calls it, with one folder that all see: each writes the rows
    it owns, rank 0 the rest, the states of its own optimizer and extras. Of a model on servers one
    process calls it, and every server writes its rows into the folder, which must be theirs, too.

    >>> import tempfile, hedgerow as hr
    >>> model = hr.EmbeddingBags([hr.Table("user", 2)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = hr.save(model, folder + "/step-7", step=7, metadata={"epoch": 1})
    ...     hr.load(model, folder + "/step-7").step
    7
    """
    folder, ranks = local_path(path), ranks_of(model)
    was_there = folder.exists()
    dense = folder / f"{_DENSE}-{secrets.token_hex(6)}"

    def save_rest() -> dict[str, Any]:
        return _save_rest(model, dense, _every(optimizer, extras), metadata)

    try:
        manifest = _save_all(model, folder, save_rest, step=step, overwrite=overwrite)
    except BaseException:
        if not _is_complete(folder, dense):  # Ctrl-C may come when all is written
            shutil.rmtree(dense, ignore_errors=True)
        if ranks.rank == 0 and not was_there and folder.exists() and not any(folder.iterdir()):
            folder.rmdir()
        raise
    if ranks.rank == 0:
        for old in folder.glob(f"{_DENSE}-*"):
            if old != dense:
                shutil.rmtree(old)
    return manifest


def _save_all(
    model: nn.Module,
    folder: Path,
    save_rest: Callable[[], dict[str, Any]],
    *,
    step: int,
    overwrite: bool,
) -> Manifest:
    """Wherever the rows are."""
    ranks, servers = ranks_of(model), servers_of(model)
    if servers is not None:
        return save_on_servers(model, folder, servers, save_rest, step=step, overwrite=overwrite)
    if ranks.count > 1:
        return save_over_ranks(model, folder, ranks, save_rest, step=step, overwrite=overwrite)
    return save_tables(
        tables_of(model).values(),
        folder,
        router=routers_of(model),
        step=step,
        metadata=save_rest(),
        overwrite=overwrite,
    )


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
    unless `reroute` is set: its rows then go by the new rule. Of a distributed model every rank
    calls it and takes the rows it owns, however many ranks saved it. Rows are read by a strict
    reader. The dense part is torch's own format, which holds pickles: load only what you trust.
    """
    ranks, servers = ranks_of(model), servers_of(model)
    job = _Load(model, local_path(path), _every(optimizer, extras), ranks, reroute=reroute)
    if servers is not None:
        job.read_rest()
        loaded = load_on_servers(model, local_path(path), servers, reroute=reroute)
        job.others_take()
        job.weights_take()
        return loaded
    brought = ranks.together("the load", job.bring)
    job.rows.prove(brought)  # the same answer on every rank
    ranks.together("the load", job.others_take)
    return job.finish()


def _save_rest(
    model: nn.Module,
    dense: Path,
    every: Mapping[str, Stateful],
    metadata: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """All but the rows into a folder of its own; what the manifest says of it."""
    states, tensors = _taken_apart(every)
    tensors.update(_weights(model))
    dense.parent.mkdir(parents=True, exist_ok=True)
    save_dense(tensors, dense)
    return {
        "user": dict(metadata or {}),
        _DENSE: dense.name,
        _FILES: checksums(dense),
        _UPDATES: [one.updates.step for one in collections_of(model)],
        _EXTRAS: states,
    }


class _Load:
    """One rank's part of a load; nothing of the model changes before `others_take`."""

    def __init__(
        self,
        model: nn.Module,
        folder: Path,
        wanted: Mapping[str, Stateful],
        ranks: Ranks,
        *,
        reroute: bool,
    ) -> None:
        self._model, self._folder, self._wanted = model, folder, wanted
        self._ranks, self._reroute = ranks, reroute

    def bring(self) -> dict[str, int]:
        """Reads and checks all of it; how many rows of each table are this rank's."""
        folder, ranks = self._folder, self._ranks
        self._read_about()
        self.rows = LoadJob(  # before the dense part: it knows whether the owner rules fit
            folder,
            tables_of(self._model).values(),
            router=routers_of(self._model, ranks.count),
            shard=ranks.rank,
            reroute=self._reroute,
            among=True,
        )
        self._read_state()
        return self.rows.bring()

    def read_rest(self) -> None:
        """Reads and checks all but the rows."""
        self._read_about()
        self._read_state()

    def _read_about(self) -> None:
        self._about = read_manifest(self._folder).metadata
        _check(self._folder, self._about, self._wanted, len(collections_of(self._model)))

    def _read_state(self) -> None:
        prefixes = tuple(f"{name}." for name in self._wanted)
        dense = self._folder / str(self._about[_DENSE])
        self._state = load_dense(dense, _weights(self._model), prefixes)

    def others_take(self) -> None:
        """Optimizer and extras come first, since they may refuse, and hold no rows."""
        for name, value in self._wanted.items():
            value.load_state_dict(_put_together(name, self._about[_EXTRAS][name], self._state))

    def finish(self) -> Loaded:
        """Rows and weights."""
        loaded = self.rows.finish()
        self.weights_take()
        return loaded

    def weights_take(self) -> None:
        """The dense part, and how many updates there were."""
        names = _weights(self._model)
        state = {name.removeprefix(_MODEL): self._state[name] for name in names}
        undressed(self._model).load_state_dict(state)
        updates = self._about[_UPDATES]
        for one, step in zip(collections_of(self._model), updates, strict=True):
            one.updates.step = step


def _weights(model: nn.Module) -> dict[str, Tensor]:
    """The dense part, under the names that the user gave."""
    return {_MODEL + name: value for name, value in undressed(model).state_dict().items()}


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
