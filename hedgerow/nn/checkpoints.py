"""The public verbs of checkpoints: save, save_async, save_increment and load.

Each takes a model, one table or several tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any, overload

import torch
from torch import Tensor, nn

from ..core.checks import unknown
from ..core.errors import DtypeError, InputError, NotSupportedError
from ..core.shapes import Int64
from ..tables.checkpoint.increments import Readable
from ..tables.checkpoint.increments import save_increment as save_increment_of_tables
from ..tables.checkpoint.load import LoadResult, OnStateMismatch, load_tables
from ..tables.checkpoint.manifest import CheckpointManifest
from ..tables.checkpoint.routers import Routers
from ..tables.checkpoint.save import Keep, Saveable, SaveHandle, save_tables, save_tables_async
from ..tables.checkpoint.workers import Report
from ..tables.config import TableConfig
from ..tables.local_table import LocalTable
from .saving import Stateful, load_model, save_model_async, save_model_now

Path = str | PathLike[str]
_SAVE_OPTIONS = frozenset({"router", "blobs", "keep", "consumer", "report"})
_LOAD_OPTIONS = frozenset({"router", "shard", "merge", "on_state_mismatch", "increments", "report"})


@overload
def save(
    what: nn.Module,
    path: Path,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    extras: Mapping[str, Stateful] | None = None,
    step: int = 0,
    metadata: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> CheckpointManifest: ...


@overload
def save(
    what: Saveable | Iterable[Saveable],
    path: Path,
    *,
    step: int = 0,
    metadata: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    router: Routers | None = None,
    blobs: Mapping[str, bytes] | None = None,
    keep: Keep | None = None,
    consumer: str | None = None,
    report: Report | None = None,
) -> CheckpointManifest: ...


def save(
    what: nn.Module | Saveable | Iterable[Saveable],
    path: Path,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    extras: Mapping[str, Stateful] | None = None,
    step: int = 0,
    metadata: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    **of_tables: Any,
) -> CheckpointManifest:
    """Saves a model or tables into the folder `path`, completely or not at all.

    For a model it saves rows, dense weights, and the states of `optimizer` and `extras`. Every rank
    of a distributed model calls it, with a folder that all ranks see. One process calls it for a
    model on servers, which must see the folder, too.

    Args:
        what: A model, a table, or several tables.
        path: The folder of the checkpoint.
        optimizer: Models: the optimizer of the dense weights.
        extras: Models: objects by name, with `state_dict` and `load_state_dict`.
        step: A number for the manifest.
        metadata: Anything that JSON holds, for the manifest.
        overwrite: Whether to replace a complete checkpoint. It stays valid until then.
        **of_tables: Options for tables: `router` (one, or one per table by name; without it all
            rows lie in one shard), `blobs` (named bytes), `keep` (which ids and times to save;
            without it rows that have expired are left out), `consumer` (the name of a reader of
            touched keys, for later increments) and `report` (called with the progress).

    >>> import tempfile, torch, hedgerow as hr
    >>> model = hr.EmbeddingBags([hr.Table("user", 2)])
    >>> table = hr.HostTable(hr.TableConfig("item", (hr.Segment(2, hr.Zeros(), hr.Sgd(lr=1.0)),)))
    >>> _ = table.assign(torch.tensor([7, -1]), torch.ones(2, 2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = hr.save(model, folder + "/model", step=7, metadata={"epoch": 1})
    ...     hr.load(model, folder + "/model").step, hr.save(table, folder + "/table").rows
    (7, 2)
    """
    if isinstance(what, nn.Module):
        _refuse_table_options("save", of_tables)
        return save_model_now(
            what,
            path,
            optimizer=optimizer,
            extras=extras,
            step=step,
            metadata=metadata,
            overwrite=overwrite,
        )
    _refuse_model_options("save", optimizer=optimizer, extras=extras)
    return save_tables(
        _tables("save", what, of_tables, _SAVE_OPTIONS),
        path,
        step=step,
        metadata=metadata,
        overwrite=overwrite,
        **of_tables,
    )


def save_async(
    what: nn.Module | Saveable | Iterable[Saveable],
    path: Path,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    extras: Mapping[str, Stateful] | None = None,
    step: int = 0,
    metadata: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    **of_tables: Any,
) -> SaveHandle:
    """Saves as `save` does, in threads of low priority, while training goes on.

    The checkpoint holds the state at the moment when this function returned. Dense weights are
    copied before it returns. A row that changes before it was written is copied first. Models over
    ranks or on servers are not supported yet.

    >>> import tempfile, hedgerow as hr
    >>> model = hr.EmbeddingBags([hr.Table("user", 2)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     hr.save_async(model, folder + "/step-1").wait().rows
    0
    """
    if isinstance(what, nn.Module):
        _refuse_table_options("save_async", of_tables)
        return save_model_async(
            what,
            path,
            optimizer=optimizer,
            extras=extras,
            step=step,
            metadata=metadata,
            overwrite=overwrite,
        )
    _refuse_model_options("save_async", optimizer=optimizer, extras=extras)
    return save_tables_async(
        _tables("save_async", what, of_tables, _SAVE_OPTIONS - {"report"}),
        path,
        step=step,
        metadata=metadata,
        overwrite=overwrite,
        **of_tables,
    )


def save_increment(
    what: Readable | Iterable[Readable],
    path: Path,
    changed: Mapping[str, Int64[Tensor, "n"]] | None = None,
    *,
    consumer: str | None = None,
    router: Routers | None = None,
    step: int = 0,
    metadata: Mapping[str, Any] | None = None,
    blobs: Mapping[str, bytes] | None = None,
    keep: Keep | None = None,
) -> CheckpointManifest:
    """Adds the rows that changed to the checkpoint in `path`, deletions included.

    `changed` names the ids of each table. Instead of it, pass the `consumer` that the save before
    was given: the table knows which keys changed since. It keeps them if this save fails. An id
    without a row is saved as a deletion, and so is an id that has expired or that `keep` leaves
    out. All rows are of one instant. Models are not supported yet: save their tables.

    >>> import tempfile, torch, hedgerow as hr
    >>> table = hr.HostTable(hr.TableConfig("item", (hr.Segment(2, hr.Zeros(), hr.Sgd(lr=1.0)),)))
    >>> _ = table.assign(torch.tensor([7, 8]), torch.ones(2, 2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = hr.save(table, folder)
    ...     _ = table.erase(torch.tensor([7]))
    ...     done = hr.save_increment(table, folder, {"item": torch.tensor([7, 8])}, step=2)
    >>> done.number, done.rows, done.tables["item"].deletions
    (1, 1, 1)
    """
    if isinstance(what, nn.Module):
        raise NotSupportedError(
            "save_increment of a model; save the whole model with hr.save, or its tables apart: "
            "hr.save(tables, path, consumer=...) once, then hr.save_increment(tables, path, "
            "consumer=...)."
        )
    return save_increment_of_tables(
        path,
        _tables("save_increment", what, {}, frozenset()),
        changed,
        consumer=consumer,
        router=router,
        step=step,
        metadata=metadata,
        blobs=blobs,
        keep=keep,
    )


@overload
def load(
    what: nn.Module,
    path: Path,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    extras: Mapping[str, Stateful] | None = None,
    reroute: bool = False,
    trusted: bool = False,
) -> LoadResult: ...


@overload
def load(
    what: LocalTable | Iterable[LocalTable],
    path: Path,
    *,
    reroute: bool = False,
    router: Routers | None = None,
    shard: int = 0,
    merge: bool = False,
    on_state_mismatch: OnStateMismatch = "error",
    increments: int | None = None,
    report: Report | None = None,
) -> LoadResult: ...


def load(
    what: nn.Module | LocalTable | Iterable[LocalTable],
    path: Path,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    extras: Mapping[str, Stateful] | None = None,
    reroute: bool = False,
    trusted: bool = False,
    **of_tables: Any,
) -> LoadResult:
    """Loads a model or tables from the folder `path`: the base and its increments.

    Every byte is checked before anything changes. State that was saved and is not asked for is left
    alone, so that a model can be loaded from the checkpoint of a training run. A table that was
    saved under another `dist_type` is refused unless `reroute` is set. Every rank of a distributed
    model calls it and takes the rows it owns, however many ranks saved it.

    Loading executes no code from a checkpoint. The dense part of a checkpoint of version 0.1 can
    run code when it is read; such a checkpoint loads only if `trusted` is set.

    Args:
        what: A model, a table, or several tables.
        path: The folder of the checkpoint.
        optimizer: Models: the optimizer whose state was saved.
        extras: Models: objects whose states were saved, by name.
        reroute: Whether rows may move to the owners of another routing rule.
        trusted: Models: whether to load a checkpoint of version 0.1.
        **of_tables: Options for tables: `router` and `shard` (load only the rows that this shard
            owns), `merge` (add rows to those in the table), `on_state_mismatch` ("error", or
            "reset" to start optimizer states anew), `increments` (load only the first so many) and
            `report` (called with the progress).

    >>> import tempfile, torch, hedgerow as hr
    >>> config = hr.TableConfig("item", (hr.Segment(2, hr.Zeros(), hr.Sgd(lr=1.0)),))
    >>> table, fresh = hr.HostTable(config), hr.HostTable(config)
    >>> _ = table.assign(torch.tensor([7, -1]), torch.ones(2, 2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = hr.save(table, folder + "/step-1", step=1)
    ...     hr.load(fresh, folder + "/step-1").rows
    {'item': 2}
    """
    if isinstance(what, nn.Module):
        _refuse_table_options("load", of_tables)
        return load_model(
            what, path, optimizer=optimizer, extras=extras, reroute=reroute, trusted=trusted
        )
    _refuse_model_options("load", optimizer=optimizer, extras=extras, trusted=trusted or None)
    tables = _tables("load", what, of_tables, _LOAD_OPTIONS)
    return load_tables(path, tables, reroute=reroute, **of_tables)


def _tables(
    verb: str, what: Any, options: Mapping[str, object], known: frozenset[str]
) -> list[Any]:
    """Returns the tables of a call, one or several, after checking them and their `options`."""
    for name in options:
        if name not in known:
            unknown(f"option of {verb} for tables", name, known)
    found = [what] if _is_table(what) else _several(verb, what)
    for one in found:
        if not _is_table(one):
            raise DtypeError(
                f"{verb} of a list with a {type(one).__name__}; pass one model, one table, or a "
                f"list of tables."
            )
    return found


def _is_table(what: object) -> bool:
    return isinstance(getattr(what, "config", None), TableConfig)


def _several(verb: str, what: Any) -> list[Any]:
    if isinstance(what, str | bytes | PathLike):
        raise DtypeError(
            f"{verb} of {what!r}; the model or the tables come first, then the folder."
        )
    try:
        return list(what)
    except TypeError as error:
        raise DtypeError(
            f"{verb} of a {type(what).__name__}; pass a model, a table or a list of tables."
        ) from error


def _refuse_table_options(verb: str, given: Mapping[str, object]) -> None:
    if given:
        raise InputError(f"{verb} of a model takes no {', '.join(sorted(given))}; tables do.")


def _refuse_model_options(verb: str, **given: object) -> None:
    named = sorted(name for name, value in given.items() if value is not None)
    if named:
        raise InputError(f"{verb} of tables takes no {', '.join(named)}; a model does.")
