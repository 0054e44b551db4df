"""Whether saved rows fit a table, and how they become entries of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from ...core.errors import CheckpointError
from ..config import TableConfig
from ..layout import RowLayout
from ..store import Entries, all_found
from .schema import ORDER, ROW, TIME, TableSchema, state_column
from .shard_file import Rows

OnStateMismatch = Literal["error", "reset"]


class Fit:
    """Turns rows of one schema into entries of one table.

    Dims must be equal. Where a segment's optimizer or its states differ, that segment's states
    start afresh with "reset". Serving tables take the row alone, at time 0.
    """

    def __init__(
        self, config: TableConfig, saved: TableSchema, on_state_mismatch: OnStateMismatch
    ) -> None:
        self._config, self._layout = config, RowLayout(config)
        self.reset: list[int] = []  # segments whose states start afresh
        live = TableSchema.of(config)
        # Version 0.1 saved no order, and that of another rule means nothing here.
        self.keeps_order = saved.order is not None and saved.order == live.order
        _check_dims(config.name, saved, live)
        if not config.serving:
            self.reset = _differing(config.name, saved, live, on_state_mismatch)

    def entries(self, rows: Rows) -> Entries:
        """The rows as the table takes them."""
        n = len(rows)
        states: list[dict[str, Tensor]] = [{} for _ in self._config.segments]
        for place in self._layout.places:
            name, segment = place.state.name, place.segment
            if segment in self.reset:
                shape = (n, place.stop - place.start) if place.state.per == "value" else (n,)
                dtype = getattr(torch, place.state.dtype)
                states[segment][name] = torch.full(shape, place.state.initial, dtype=dtype)
            else:
                column = rows.columns[state_column(segment, name)]
                states[segment][name] = torch.from_numpy(column)
        ts = torch.from_numpy(rows.columns[TIME])
        if self._config.serving:
            ts = torch.zeros_like(ts)
        return Entries(
            torch.from_numpy(rows.ids),
            all_found(n),
            torch.from_numpy(rows.columns[ROW]),
            states,
            ts,
            torch.from_numpy(rows.columns[ORDER]) if self.keeps_order else None,
        )


def _check_dims(name: str, saved: TableSchema, live: TableSchema) -> None:
    if len(saved.segments) != len(live.segments):
        raise CheckpointError(
            f"table {name!r}: segments: {len(saved.segments)} in the checkpoint, "
            f"{len(live.segments)} in the table; they must be the same."
        )
    for i, (old, new) in enumerate(zip(saved.segments, live.segments, strict=True)):
        if old.dim != new.dim:
            raise CheckpointError(
                f"table {name!r}: segments[{i}].dim: {old.dim} in the checkpoint, {new.dim} in the "
                f"table; they must be the same."
            )


def _differing(
    name: str, saved: TableSchema, live: TableSchema, on_state_mismatch: OnStateMismatch
) -> list[int]:
    differing: list[int] = []
    for i, (old, new) in enumerate(zip(saved.segments, live.segments, strict=True)):
        field, before, now, fix = "optimizer", old.optimizer, new.optimizer, ""
        if before == now:
            field, before, now = "states", _names(old.states), _names(new.states)
        if before == now:
            field, before, now = "bias_correction", old.bias_correction, new.bias_correction
            fix = (
                f"make the table with {old.optimizer}(bias_correction={before!r}) to go on as it "
                f"was trained (version 0.1 had only 'row'), or "
            )
        if before == now:
            continue
        if on_state_mismatch == "error":
            raise CheckpointError(
                f"table {name!r}: segments[{i}].{field}: {before} in the checkpoint, {now} in the "
                f"table; {fix}load with on_state_mismatch='reset' to start its states afresh."
            )
        differing.append(i)
    return differing


def _names(states: Sequence[object]) -> str:
    return ", ".join(map(str, states)) or "none"
