"""Saved rows gathered into `Entries` of a table, after checking that they fit it."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from ..core import checks
from ..core.errors import FileDamagedError, InputError, NotFiniteError
from ..core.protobuf import WireError
from ..tables.config import TableConfig
from ..tables.layout import RowLayout
from ..tables.store import Entries
from .entry_dump import NO_VALUES, EntryDump
from .optimizer_dump import WRITES_NONE, Form, decode_states, form_of
from .records import Record
from .row_shape import RowShape

OnStateMismatch = Literal["error", "reset"]
_BATCH_BYTES = 2**24


class _Mismatch(Exception):  # noqa: N818  (never leaves this file)
    """States in the file that are not those of the table."""


class RowBatch:
    """Room for rows of one table; full ones are taken and the room is used again. One owner.

    With `on_state_mismatch="reset"` a row whose saved states are not those of the table's
    optimizers keeps its values and starts with fresh states; such rows are counted.
    """

    def __init__(self, config: TableConfig, on_state_mismatch: OnStateMismatch = "error") -> None:
        checks.choice("import", "on_state_mismatch", on_state_mismatch, ("error", "reset"))
        self.config, self.layout = config, RowLayout(config)
        self._resets = 0
        self._reset = on_state_mismatch == "reset"
        row_bytes = 4 * (self.layout.dim + self.layout.state_floats) + 16
        self._room = max(1, min(65536, _BATCH_BYTES // row_bytes))
        self._ids = np.empty(self._room, np.int64)
        self._ts = np.empty(self._room, np.int64)
        self._rows = np.empty((self._room, self.layout.dim), np.float32)
        self._states = [self._state_room(i) for i in range(len(config.segments))]
        self._records: list[Record] = []
        optimizers = [] if config.serving else [s.optimizer for s in config.segments]
        self._forms: list[tuple[int, Form | None]] = [
            (i, form_of(o)) for i, o in enumerate(optimizers) if o and o.kind != WRITES_NONE
        ]
        self._shape = self._usual_shape()

    def __len__(self) -> int:
        return len(self._records)

    @property
    def full(self) -> bool:
        """Whether it must be taken before the next row."""
        return len(self._records) == self._room

    def add(self, record: Record) -> None:
        """One row more."""
        self._records.append(record)

    def take(self) -> tuple[Entries, int]:
        """The rows so far, and how many have fresh states; the batch is empty afterwards.

        Raises, naming table and id, if a row does not fit the table.
        """
        n = len(self._records)
        usual = self._take_usual()
        for i in range(n):
            if not usual[i]:
                self._decode(self._records[i], i)
        if self.config.not_finite == "reject":
            self._check_finite(n)
        states = [
            {name: torch.from_numpy(room[:n].copy()) for name, room in segment.items()}
            for segment in self._states
        ]
        try:
            self.layout.join(states, n)
        except InputError as error:
            files = ", ".join(sorted({str(record.file) for record in self._records}))
            raise FileDamagedError(f"table {self.config.name!r} in {files}: {error}") from error
        found = torch.ones(n, dtype=torch.bool)
        rooms = (self._ids, self._rows, self._ts)
        ids, rows, ts = (torch.from_numpy(room[:n].copy()) for room in rooms)
        resets, self._resets = self._resets, 0
        self._records.clear()
        return Entries(ids, found, rows, states, ts), resets

    def _usual_shape(self) -> RowShape | None:
        """None where rows hold numbers of no fixed length, or states this table does not have."""
        dumps: list[tuple[Form, dict[str, int]]] = []
        for segment, form in self._forms:
            if form is None or form.integers or set(form.floats) != set(self._states[segment]):
                return None
            rooms = self._states[segment].items()
            dumps.append((form, {n: 1 if r.ndim == 1 else r.shape[1] for n, r in rooms}))
        return RowShape(self.layout.dim, dumps)

    def _take_usual(self) -> NDArray[np.bool_]:
        """Decodes the rows in the usual form; says which they were."""
        usual = np.zeros(len(self._records), np.bool_)
        if self._shape is None:
            return usual
        found = self._shape.decode([record.payload for record in self._records])
        at, start = found.at, self.layout.dim
        usual[at] = True
        self._ids[at], self._rows[at] = found.ids, found.floats[:, :start]
        self._ts[at] = 0 if self.config.serving else found.ts
        for segment, form in self._forms:
            for name in form.floats if form else ():
                room = self._states[segment][name]
                stop = start + (1 if room.ndim == 1 else room.shape[1])
                values = found.floats[:, start:stop]
                room[at] = values[:, 0] if room.ndim == 1 else values
                start = stop
        return usual

    def _decode(self, record: Record, i: int) -> None:
        entry = record.entry()
        if len(entry.values) != self.layout.dim:
            raise InputError(
                f"{self._place(record, entry.id)} has {len(entry.values)} values; the "
                f"configuration gives the table dim {self.layout.dim}. Correct its segments."
            )
        if entry.ts < 0:
            raise InputError(f"{self._place(record, entry.id)} has the time {entry.ts}; 0 or more.")
        self._ids[i], self._rows[i] = entry.id, entry.values
        self._ts[i] = 0 if self.config.serving else entry.ts  # a serving row has no update time
        if self.layout.places:
            self._add_states(record, entry, i)

    def _state_room(self, segment: int) -> dict[str, NDArray[Any]]:
        room: dict[str, NDArray[Any]] = {}
        for place in self.layout.places:
            if place.segment == segment:
                width = self.config.segments[segment].dim
                shape = (self._room, width) if place.state.per == "value" else (self._room,)
                room[place.state.name] = np.empty(shape, place.state.dtype)
        return room

    def _add_states(self, record: Record, entry: EntryDump, i: int) -> None:
        try:
            self._saved_states(entry, i)
        except _Mismatch as error:
            if not self._reset:
                raise InputError(
                    f"{self._place(record, entry.id)} {error}. Give the table the optimizers it "
                    f"was saved with, or import with on_state_mismatch='reset'."
                ) from error
            self._resets += 1
            for place in self.layout.places:
                self._states[place.segment][place.state.name][i] = place.state.initial
        except WireError as error:
            raise FileDamagedError(
                f"{self._place(record, entry.id)} has a damaged optimizer state: {error}."
            ) from error

    def _saved_states(self, entry: EntryDump, i: int) -> None:
        if len(entry.dumps) != len(self._forms):
            raise _Mismatch(
                f"has the states of {len(entry.dumps)} segments; the table has {len(self._forms)}"
            )
        for dump, (segment, form) in zip(entry.dumps, self._forms, strict=True):
            if form is None or dump.number != form.number:
                own = self.config.segments[segment].optimizer
                raise _Mismatch(
                    f"was saved by {dump.kind}; segments[{segment}] has "
                    f"{own.kind if own else 'no optimizer'}"
                )
            floats, integers = decode_states(form, dump.body)
            for name, room in self._states[segment].items():
                if name in form.integers:
                    room[i] = integers.get(name, 0)
                    continue
                values, wanted = floats.get(name, NO_VALUES), 1 if room.ndim == 1 else room.shape[1]
                if len(values) != wanted:
                    raise _Mismatch(
                        f"has {len(values)} values of {form.kind}'s {name!r}; segments[{segment}] "
                        f"needs {wanted}"
                    )
                room[i] = values[0] if room.ndim == 1 else values

    def _check_finite(self, n: int) -> None:
        bad = ~np.isfinite(self._rows[:n]).all(axis=1)
        if bad.any():
            i = int(bad.argmax())
            raise NotFiniteError(
                f"{self._place(self._records[i], int(self._ids[i]))} holds "
                f"{self._rows[i][~np.isfinite(self._rows[i])][0]}; the table rejects what is not "
                f"finite. Leave such rows out with not_finite='drop' in its configuration."
            )

    def _place(self, record: Record, key: int) -> str:
        return f"table {self.config.name!r}, id {key} ({record.file}, record at byte {record.at})"
