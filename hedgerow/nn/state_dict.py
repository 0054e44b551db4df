"""Puts the rows of a module into its state_dict, and copies them in deep copies of it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from torch import Tensor

from ..core.errors import CheckpointError, NotSupportedError, RowsLeftOutWarning
from ..core.process_state import job_rank
from ..core.shapes import Int8
from ..tables.checkpoint.packed import PackedRows, pack_rows
from ..tables.local_table import LocalTable
from .row_updates import RowUpdates

if TYPE_CHECKING:
    from .embedding_modules import EmbeddingModule

MOST_BYTES = 2**30
"""The most bytes of rows in the `state_dict` of one module, and in a deep copy: 1 GiB."""

_ABSENT = (
    "which a state dict of version 0.1 or of dense weights alone does not have; load them with "
    "hr.load, or keep those of the module with strict=False"
)
_SAVE = "Use hr.save(model, folder) and hr.load(model, folder)"


def packed_rows(module: EmbeddingModule) -> Int8[Tensor, "bytes"]:
    """Returns all rows of a module with optimizer states, times, filters and update count."""
    _warn_of_other_ranks(module)
    return _pack_rows(module)


def take_rows(module: EmbeddingModule, packed: object) -> None:
    """Replaces all rows of a module by those that `packed_rows` returned, or none."""
    _take_rows(module, _read_rows(module, packed), strict=True)


def load_rows(
    module: EmbeddingModule,
    state_dict: Mapping[str, Any],
    key: str,
    missing_keys: list[str],
    unexpected_keys: list[str],
) -> None:
    """Loads the rows of a state dict, which are under `key`, for `load_state_dict`.

    It adds missing and unexpected tables to the lists, as modules of torch do. torch then raises an
    error unless `strict=False`. Rows that are damaged or do not fit raise at once, and nothing
    changes.
    """
    if key not in state_dict:
        if not module.rows_apart:
            names = ", ".join(module.store.names)
            missing_keys.append(_StateKey(key, f"the rows of tables {names}, {_ABSENT}"))
        return
    found = _read_rows(module, state_dict[key])
    missing, extra = found.differing(_tables(module))
    missing_keys += [_StateKey(key, f"the rows of table {name!r}, {_ABSENT}") for name in missing]
    unexpected_keys += [_StateKey(key, f"the rows of table {name!r}") for name in extra]
    _take_rows(module, found, strict=False)


class _StateKey(str):
    """A state-dict key that adds an explanation when torch formats it in an error message."""

    __slots__ = ("about",)
    about: str

    def __new__(cls, key: str, about: str) -> Self:
        made = super().__new__(cls, key)
        made.about = about
        return made

    def __format__(self, spec: str) -> str:
        return format(f"{self!s} ({self.about})", spec)


def _read_rows(module: EmbeddingModule, packed: object) -> PackedRows:
    _check_here(module, "load_state_dict() of")
    found = PackedRows.of(packed)
    step = found.about.get("step")
    if type(step) is not int or not 0 <= step < 2**63:
        raise CheckpointError(f"the rows of a state dict have {step!r} updates; they are damaged.")
    return found


def _take_rows(module: EmbeddingModule, found: PackedRows, *, strict: bool) -> None:
    found.restore(_tables(module), strict=strict)
    module.updates.step = found.about["step"]


def copied(module: EmbeddingModule, memo: dict[int, Any]) -> EmbeddingModule:
    """Returns a deep copy of a module with tables in host memory, with the same clock."""
    _check_here(module, "a copy of")
    store = module.store.emptied(module.clock)
    new: EmbeddingModule = object.__new__(type(module))
    memo[id(module)] = new
    own: Mapping[str, Any] = {
        "store": store,
        "updates": RowUpdates(store, module.clip, module.clock),
        "ahead": None,
        "_clock": module.clock,
    }
    for name, value in module.__dict__.items():
        new.__dict__[name] = own[name] if name in own else copy.deepcopy(value, memo)
    take_rows(new, _pack_rows(module))
    return new


def _pack_rows(module: EmbeddingModule) -> Int8[Tensor, "bytes"]:
    _check_here(module, "state_dict() of")
    about = {"step": module.updates.step}
    return pack_rows(_tables(module), about, most_bytes=MOST_BYTES)


def _warn_of_other_ranks(module: EmbeddingModule) -> None:
    """Warns if each rank of a job trains its own rows: a state dict holds those of one rank.

    DDP around a model without `hr.distribute` shares the dense weights only, and trainers save the
    state dict of rank 0.
    """
    job = job_rank()
    if job.count > 1 and module.updates.step and module.ranks.count == 1 and not module.servers:
        warnings.warn(
            f"this state dict holds the rows that rank {job.rank} of {job.count} trained, and none "
            f"of the other ranks: without hr.distribute(model) each rank has rows of its own. Call "
            f"it before training; hr.save then keeps the rows of all ranks.",
            RowsLeftOutWarning,
            stacklevel=4,
        )


def _check_here(module: EmbeddingModule, what: str) -> None:
    """Raises `NotSupportedError` unless all rows are in this process."""
    where = ""
    if module.servers is not None:
        where = f"on {module.servers.count} servers"
    elif module.ranks.count > 1:
        where = f"spread over {module.ranks.count} ranks"
    if where:
        raise NotSupportedError(
            f"{what} a model whose rows are {where}: it would contain the rows of one process "
            f"only. {_SAVE}, called by every rank; model.named_parameters() are the dense weights."
        )


def _tables(module: EmbeddingModule) -> dict[str, LocalTable]:
    return {name: module.table(name) for name in module.store.names}
