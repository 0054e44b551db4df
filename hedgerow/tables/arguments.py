"""Checks of what callers pass to a table, the same for every store of rows."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from ..core import checks
from ..core.errors import InputError
from .store import TableKeys, as_keys


def keys_of_one_table(
    keys: TableKeys | Tensor, most: int, device: torch.device = checks.CPU, *, room: bool = False
) -> TableKeys:
    """Keys of a store that holds one table and takes `most` of them in a call."""
    keys = as_keys(keys, 1, device, room=room)
    if len(keys.ids) > most:
        raise InputError(f"{len(keys.ids)} ids in one call; at most {most}. Split the batch.")
    return keys


def missing_rule(missing: str) -> None:
    """Refuses what a lookup cannot do with an absent id."""
    if missing not in ("zeros", "initializer", "training"):
        raise InputError(
            f"missing is {missing!r}; it must be 'zeros', 'initializer' or 'training'."
        )


def output(out: Tensor, n: int, dim: int, device: torch.device = checks.CPU) -> Tensor:
    """The caller's output [n, dim], also given flat, about to be overwritten."""
    if isinstance(out, Tensor) and out.dim() == 1:
        checks.tensor("out", out, torch.float32, (n * dim,), device)
        out = out.view(n, dim)
    checks.tensor("out", out, torch.float32, (n, dim), device)
    if out.requires_grad:
        raise InputError("out requires grad; autograd could not see it change. Detach it.")
    increment_version(out)  # so that autograd notices if it saved the old values
    return out


def rows_of_batch(
    name: str, rows: Tensor, n: int, dim: int, device: torch.device = checks.CPU
) -> Tensor:
    """Rows or gradients [n, dim], also given flat, as `Lookup.rows` is."""
    if isinstance(rows, Tensor) and rows.dim() == 1:
        checks.tensor(name, rows, torch.float32, (n * dim,), device)
        rows = rows.view(n, dim)
    checks.tensor(name, rows, torch.float32, (n, dim), device)
    return rows


def occurrences(counts: Tensor | None, n: int, device: torch.device = checks.CPU) -> None:
    """How often each of `n` ids occurred, where the caller says so; a device is not waited for."""
    if counts is None:
        return
    checks.tensor("counts", counts, torch.int64, (n,), device)
    if device == checks.CPU and n and int(counts.min()) < 1:
        raise InputError(
            f"counts has {int(counts.min())}; an id occurs at least once. Leave others out."
        )


NO_STEP = -1  # to the core and to kernels: the update was given none


def needed_step(step: int | None, needed: bool, table: str, why: str) -> int:
    """The step, 0 where none was given and nobody needs one."""
    if step is None and needed:
        raise InputError(f"table {table!r} {why} by the step, which was not given; pass step=.")
    found = checks.count("step", 0 if step is None else step)
    if found == 2**63 - 1:  # rules count this step, too
        raise InputError(f"step is {found}; it must be below 2**63-1.")
    return found


def table_number(k: int, tables: int) -> int:
    """One of the tables of a store, counted from 0."""
    if checks.count("k", k) >= tables:
        raise InputError(f"table {k} of a store of {tables}; they are counted from 0.")
    return k
