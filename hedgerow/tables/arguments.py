"""Checks of the arguments that callers pass to a table; the same for every store of rows."""

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
    """Returns the checked keys of a single table; a call takes at most `most` of them."""
    keys = as_keys(keys, 1, device, room=room)
    if len(keys.ids) > most:
        raise InputError(f"{len(keys.ids)} ids in one call; at most {most}. Split the batch.")
    return keys


def missing_rule(missing: str) -> None:
    """Raises if `missing` is not a known rule for absent ids."""
    if missing not in ("zeros", "initializer", "training"):
        raise InputError(
            f"missing is {missing!r}; it must be 'zeros', 'initializer' or 'training'."
        )


def output(out: Tensor, n: int, dim: int, device: torch.device = checks.CPU) -> Tensor:
    """Returns the caller's output as [n, dim]; it may be given flat.

    It is about to be overwritten.
    """
    if isinstance(out, Tensor) and out.dim() == 1:
        checks.tensor("out", out, torch.float32, (n * dim,), device)
        out = out.view(n, dim)
    checks.tensor("out", out, torch.float32, (n, dim), device)
    if out.requires_grad:
        raise InputError("out requires grad; autograd could not see it change. Detach it.")
    increment_version(out)  # autograd then notices if it saved the old values
    return out


def rows_of_batch(
    name: str, rows: Tensor, n: int, dim: int, device: torch.device = checks.CPU
) -> Tensor:
    """Returns rows or gradients as [n, dim]; they may be given flat, like `Lookup.rows`."""
    if isinstance(rows, Tensor) and rows.dim() == 1:
        checks.tensor(name, rows, torch.float32, (n * dim,), device)
        rows = rows.view(n, dim)
    checks.tensor(name, rows, torch.float32, (n, dim), device)
    return rows


def occurrences(counts: Tensor | None, n: int, device: torch.device = checks.CPU) -> None:
    """Checks how often each of `n` ids occurred, if given. Never waits for a device."""
    if counts is None:
        return
    checks.tensor("counts", counts, torch.int64, (n,), device)
    if device == checks.CPU and n and int(counts.min()) < 1:
        raise InputError(
            f"counts has {int(counts.min())}; an id occurs at least once. Leave others out."
        )


NO_STEP = -1  # what the core and kernels take for a step of None


def needed_step(step: int | None, needed: bool, table: str, why: str) -> int:
    """Returns the checked step. None gives 0, or raises if the step is needed."""
    if step is None and needed:
        raise InputError(
            f"step is missing: table {table!r} {why} according to the step; pass step=."
        )
    found = checks.count("step", 0 if step is None else step)
    if found == 2**63 - 1:  # the core also computes step + 1
        raise InputError(f"step is {found}; it must be below 2**63-1.")
    return found


def table_number(k: int, tables: int) -> int:
    """Returns `k`, checked as the number of a table of a store, counted from 0."""
    if checks.count("k", k) >= tables:
        raise InputError(f"table {k} of a store of {tables}; they are counted from 0.")
    return k
