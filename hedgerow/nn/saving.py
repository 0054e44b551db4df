"""Saves and loads a model whose rows are in one process, on several ranks, or on servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..core.errors import CheckpointError, HedgerowError, NotSupportedError
from ..core.files import local_path
from ..ps.saving import load_servers, save_servers
from ..sharding.agreement import RankGroup
from ..tables.checkpoint.chain import Chain
from ..tables.checkpoint.load import LoadJob, LoadResult
from ..tables.checkpoint.manifest import DENSE, CheckpointManifest
from ..tables.checkpoint.manifest_reader import read_manifest
from ..tables.checkpoint.save import (
    SaveHandle,
    checked_header,
    save_model,
    start_saving_model,
)
from ..tables.checkpoint.shared_save import SharedSave
from ..tables.checkpoint.writer import Dense, WrittenFiles
from .embedding_modules import (
    ServerGroup,
    collections_of,
    dense_only,
    dense_state,
    ranks_of,
    servers_of,
)
from .model_tables import routers_of, tables_of
from .saved_state import (
    MODEL,
    OBJECT,
    CheckpointedModel,
    RequestedState,
    check_shapes,
    dense_part,
    put_together,
    take_apart,
)

_DOING = "the save"


@dataclass(frozen=True, slots=True)
class ModelState:
    """Everything of a model except its rows: the metadata for the manifest, and the tensors."""

    metadata: dict[str, Any]
    dense: Dense


def save_over_ranks(
    model: nn.Module,
    folder: Path,
    ranks: RankGroup,
    rest: Callable[[], ModelState],
    *,
    step: int,
    overwrite: bool,
) -> CheckpointManifest:
    """Saves a model over ranks: all ranks complete the save, or all raise an error.

    `rest` is called on rank 0, which writes everything except the rows.
    """
    job = SharedSave(
        tables_of(model).values(),
        folder,
        router=routers_of(model, ranks.count),
        shard=ranks.rank,
        overwrite=overwrite,
    )
    about: dict[str, Any] = {}
    first = ranks.rank == 0

    def write(mark: str, newest_s: Mapping[str, int]) -> WrittenFiles:
        if not first:
            return job.write(mark, newest_s)
        found = rest()
        about.update(found.metadata)
        return job.write(mark, newest_s, dense=found.dense)

    def finish(mark: str, written: list[WrittenFiles]) -> CheckpointManifest | None:
        header = checked_header(step, about, None)
        return job.finish(mark, written, header) if first else None

    try:
        told = ranks.together(_DOING, lambda: (job.open() if first else "", job.newest_s()))
        mark = told[0][0]
        newest_s = {name: max(times[name] for _, times in told) for name in told[0][1]}
        try:
            written = ranks.together(_DOING, lambda: write(mark, newest_s))
            manifest = ranks.together(_DOING, lambda: finish(mark, written))[0]
        except BaseException:
            job.abandon(mark)
            raise
    finally:
        job.close()
    if manifest is None:
        raise AssertionError("rank 0 gives a manifest")
    return manifest


def save_on_servers(
    model: nn.Module,
    folder: Path,
    servers: ServerGroup,
    rest: Callable[[], ModelState],
    *,
    step: int,
    overwrite: bool,
) -> CheckpointManifest:
    """Saves the rows of all servers and the rest of the model. Returns the manifest of this save.

    A failed save leaves no partial checkpoint.
    """
    found = rest()
    return save_servers(
        servers.shards,
        folder,
        router=routers_of(model, servers.count),
        step=step,
        metadata=found.metadata,
        overwrite=overwrite,
        dense=found.dense,
    )


def load_on_servers(
    model: nn.Module, folder: Path, servers: ServerGroup, *, reroute: bool
) -> LoadResult:
    """Loads rows into servers: every server takes the rows it owns.

    The number of servers or ranks that saved the rows may differ.
    """
    load_servers(servers.shards, folder, router=routers_of(model, servers.count), reroute=reroute)
    live = {table.name: table.also for table in servers.config.configs}
    chain = Chain.read(folder).as_live(live)
    sizes = dict(zip(servers.config.names, _sizes(servers), strict=True))
    return LoadResult(
        rows={name: rows for name, rows in sizes.items() if name in chain.tables},
        added=tuple(name for name in live if name not in chain.tables),
        removed=tuple(name for name in chain.tables if name not in live),
        reset=(),
        step=chain.last.step,
        metadata=chain.last.metadata,
        blobs={},
    )


def _sizes(servers: ServerGroup) -> list[int]:
    asked = [shard.start_sizes() for shard in servers.shards]
    return [sum(of_table) for of_table in zip(*(one.wait() for one in asked), strict=True)]


class Stateful(Protocol):
    """An object that can be saved with a model, such as a scheduler, a data source or metrics."""

    def state_dict(self) -> dict[str, Any]:
        """Returns tensors, numbers, strings and None, or lists, tuples and dicts of these."""
        ...

    def load_state_dict(self, state: Any, /) -> Any:
        """Restores a state that `state_dict` returned."""
        ...


def save_model_now(
    model: nn.Module,
    path: str | PathLike[str],
    *,
    optimizer: torch.optim.Optimizer | None,
    extras: Mapping[str, Stateful] | None,
    step: int,
    metadata: Mapping[str, Any] | None,
    overwrite: bool,
) -> CheckpointManifest:
    """Saves a model of this process, over ranks, or on servers."""
    folder, ranks, servers = local_path(path), ranks_of(model), servers_of(model)

    def rest() -> ModelState:
        return _model_state(model, _stateful_parts(optimizer, extras), metadata)

    if servers is not None:
        return save_on_servers(model, folder, servers, rest, step=step, overwrite=overwrite)
    if ranks.count > 1:
        return save_over_ranks(model, folder, ranks, rest, step=step, overwrite=overwrite)
    found = rest()
    header = replace(checked_header(step, found.metadata, None), dense=found.dense)
    tables, router = tables_of(model).values(), routers_of(model)
    return save_model(tables, folder, router=router, header=header, overwrite=overwrite)


def save_model_async(
    model: nn.Module,
    path: str | PathLike[str],
    *,
    optimizer: torch.optim.Optimizer | None,
    extras: Mapping[str, Stateful] | None,
    step: int,
    metadata: Mapping[str, Any] | None,
    overwrite: bool,
) -> SaveHandle:
    """Saves a model of this process in threads; its dense tensors are copied here."""
    if servers_of(model) is not None or ranks_of(model).count > 1:
        raise NotSupportedError(
            "save_async of a model over ranks or on servers; use hr.save, which every rank calls."
        )
    found = _model_state(model, _stateful_parts(optimizer, extras), metadata, copied=True)
    header = replace(checked_header(step, found.metadata, None), dense=found.dense)
    tables, router = tables_of(model).values(), routers_of(model)
    return start_saving_model(
        tables, local_path(path), router=router, header=header, overwrite=overwrite
    )


def load_model(
    model: nn.Module,
    path: str | PathLike[str],
    *,
    optimizer: torch.optim.Optimizer | None,
    extras: Mapping[str, Stateful] | None,
    reroute: bool,
    trusted: bool,
) -> LoadResult:
    """Loads what a save of a model wrote. The model changes only after every byte was checked."""
    ranks, servers = ranks_of(model), servers_of(model)
    every = _stateful_parts(optimizer, extras)
    job = _ModelLoad(model, local_path(path), every, ranks, reroute=reroute, trusted=trusted)
    if servers is not None:
        job.read_rest()
        loaded = load_on_servers(model, local_path(path), servers, reroute=reroute)
        job.others_take()
        job.weights_take()
        return loaded
    brought = ranks.together("the load", job.bring)
    job.rows.prove(brought)  # all ranks get the same result
    ranks.together("the load", job.others_take)
    return job.finish()


def _model_state(
    model: nn.Module,
    every: Mapping[str, Stateful],
    metadata: Mapping[str, Any] | None,
    *,
    copied: bool = False,
) -> ModelState:
    """All of a model but the rows: tensors for the dense part, other values for the manifest.

    The tensors are copies if `copied`, else those of the model.
    """
    tensors: dict[str, Tensor] = {}
    objects: dict[str, Any] = {}
    for name, value in dense_state(model).items():
        if isinstance(value, Tensor):
            tensors[MODEL + name] = value
        else:
            objects[name] = _taken_apart(OBJECT + name, value, tensors)
    states = {name: _taken_apart(name, one.state_dict(), tensors) for name, one in every.items()}
    about = {
        "user": dict(metadata or {}),
        "dense": DENSE,
        "updates": [one.updates.step for one in collections_of(model)],
        "extras": states,
    }
    if copied:
        tensors = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    return ModelState(about | ({"objects": objects} if objects else {}), dense_part(tensors))


def _taken_apart(name: str, state: object, tensors: dict[str, Tensor]) -> Any:
    plain, found = take_apart(name, state)
    tensors.update({f"{name}.{i}": tensor for i, tensor in enumerate(found)})
    return plain


class _ModelLoad:
    """One rank's part of a load. The model does not change before `others_take`."""

    def __init__(
        self,
        model: nn.Module,
        folder: Path,
        wanted: Mapping[str, Stateful],
        ranks: RankGroup,
        *,
        reroute: bool,
        trusted: bool,
    ) -> None:
        self._model, self._folder, self._wanted = model, folder, wanted
        self._ranks, self._reroute, self._trusted = ranks, reroute, trusted

    def bring(self) -> dict[str, int]:
        """Reads and checks everything. Returns how many rows of each table this rank takes."""
        folder, ranks = self._folder, self._ranks
        self._check_about()
        self.rows = LoadJob(  # first, so that routing rules that differ are reported first
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
        """Reads and checks everything except the rows."""
        self._check_about()
        self._read_state()

    def _check_about(self) -> None:
        modules = len(collections_of(self._model))
        wanted = RequestedState(tuple(self._wanted), modules, trusted=self._trusted)
        self._saved = CheckpointedModel.of(self._folder, read_manifest(self._folder), wanted)

    def _read_state(self) -> None:
        """Reads the model's dense tensors and other state, and the requested extras."""
        live = dense_state(self._model)
        tensors = {MODEL + name: value for name, value in live.items() if isinstance(value, Tensor)}
        saved = self._saved.open(tensors)
        state = {name: saved(name) for name in tensors}
        check_shapes(self._folder, state, {name: one.shape for name, one in tensors.items()})
        self._state: dict[str, Any] = {n.removeprefix(MODEL): one for n, one in state.items()}
        for name in live:
            if name not in self._state:
                self._state[name] = self._whole(OBJECT + name, self._saved.object(name), saved)
        self._others = {
            name: self._whole(name, self._saved.extras[name], saved) for name in self._wanted
        }

    def _whole(self, name: str, plain: Any, saved: Callable[[str], Tensor]) -> Any:
        where = f"{self._folder}: {name}"
        return put_together(where, plain, lambda number: saved(f"{name}.{number}"))

    def others_take(self) -> None:
        """Restores the optimizer and the extras, which may raise an error, before the weights."""
        for name, value in self._wanted.items():
            self._give(name, value, self._others[name])

    def _give(self, name: str, to: Stateful | nn.Module, state: Any) -> None:
        try:
            to.load_state_dict(state)
        except HedgerowError:
            raise
        except Exception as error:  # the object and the state may be of any kind
            raise CheckpointError(
                f"{self._folder}: the state of {name} does not fit the live one: {error!r}"
            ) from error

    def finish(self) -> LoadResult:
        """Moves rows into the tables, then restores the dense weights."""
        loaded = self.rows.finish()
        self.weights_take()
        return loaded

    def weights_take(self) -> None:
        """Restores the dense part and the count of updates of each module."""
        with dense_only(self._model) as model:
            self._give("the model", model, self._state)
        for one, step in zip(collections_of(self._model), self._saved.updates, strict=True):
            one.updates.step = step


def _stateful_parts(
    optimizer: torch.optim.Optimizer | None, extras: Mapping[str, Stateful] | None
) -> dict[str, Stateful]:
    found: dict[str, Stateful] = {f"extra.{name}": value for name, value in (extras or {}).items()}
    return found if optimizer is None else {"optimizer": optimizer, **found}
