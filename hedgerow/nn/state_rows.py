"""The rows of a module in its `state_dict`, as one tensor of bytes, and in copies of it."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..core.errors import CheckpointError, NotSupportedError, StateError
from ..core.shapes import Int8
from ..tables.checkpoint.packed import PackedRows, pack_rows
from ..tables.multi.host_tables import HostTables
from ..tables.own_rows import OwnRows
from .updates import RowUpdates

if TYPE_CHECKING:
    from .collection import Collection

MOST_BYTES = 2**30
"""What a `state_dict` carries of the rows of one module, or a copy of it: 1 GiB."""

_SAVE = "Use hr.save(model, folder) and hr.load(model, folder)"


def packed_rows(module: Collection) -> Int8[Tensor, "bytes"]:
    """All rows of a module, with optimizer states, times, filters and the count of its updates."""
    _check_here(module, "state_dict() of")
    about = {"step": module.updates.step}
    return pack_rows(_tables(module), about, most_bytes=MOST_BYTES)


def take_rows(module: Collection, packed: object, *, strict: bool = True) -> None:
    """Puts what `packed_rows` gave in the place of the module's rows: all of it, or nothing."""
    _check_here(module, "load_state_dict() of")
    found = PackedRows.of(packed)
    step = found.about.get("step")
    if type(step) is not int or not 0 <= step < 2**63:
        raise CheckpointError(f"the rows of a state dict tell of {step!r} updates; damaged.")
    found.restore(_tables(module), strict=strict)
    module.updates.step = step


def rows_missing(module: Collection, key: str, *, strict: bool) -> None:
    """Of a state dict without rows: an error, or with `strict` off a word in the log."""
    names = ", ".join(module.store.names)
    if strict:
        raise StateError(
            f"the state dict has no rows of tables {names}: it lacks {key!r}. It was made by "
            f"version 0.1, or of the dense weights alone. Load rows with hr.load, or leave those "
            f"of the module as they are with load_state_dict(..., strict=False)."
        )
    logging.getLogger("hedgerow").warning(
        "a state dict without %r was loaded: rows of tables %s stay as they were", key, names
    )


def copied(module: Collection, memo: dict[int, Any]) -> Collection:
    """A deep copy of a module with tables in host memory: rows of its own, the same clock."""
    _check_here(module, "a copy of")
    if not isinstance(module.store, HostTables):
        raise NotSupportedError(
            f"a copy of a module whose rows are not all in host memory. {_SAVE} into a new one."
        )
    new: Collection = object.__new__(type(module))
    memo[id(module)] = new
    configs = {table.config.name: table.config for table in module.store.tables}
    store = HostTables(configs, clock=module.clock)
    own: Mapping[str, Any] = {
        "store": store,
        "updates": RowUpdates(store, module.clip, module.clock),
        "ahead": None,
        "_clock": module.clock,
    }
    for name, value in module.__dict__.items():
        new.__dict__[name] = own[name] if name in own else copy.deepcopy(value, memo)
    take_rows(new, packed_rows(module))
    return new


def _check_here(module: Collection, what: str) -> None:
    """The rows are those of this process alone."""
    where = ""
    if module.servers is not None:
        where = f"on {module.servers.count} servers"
    elif module.ranks.count > 1:
        where = f"spread over {module.ranks.count} ranks"
    if where:
        raise NotSupportedError(
            f"{what} a model whose rows are {where}: it would hold those of one process, and lose "
            f"the others. {_SAVE}, called by every rank; model.named_parameters() are the dense "
            f"weights."
        )


def _tables(module: Collection) -> dict[str, OwnRows]:
    return {name: module.table(name) for name in module.store.names}
