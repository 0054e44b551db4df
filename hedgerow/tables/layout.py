"""The layout of a row: where each segment and each state is, and the core's description of it."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import native
from ..core import checks
from ..core.errors import InputError
from ..core.shapes import Float32
from .compressors import Fp32
from .config import Segment, TableConfig
from .optimizers import OptimizerState

_SLICE_BYTES = 2**24
_MOST_SLICE_ROWS = 65536

States = tuple[dict[str, Tensor], ...]
"""One dict per segment.

It maps state names to [n, dim], or to [n] for a state with one value per row.
"""


@dataclass(frozen=True, slots=True)
class StatePlace:
    """The position of one state of one segment in the floats that follow the embedding."""

    segment: int
    state: OptimizerState
    start: int
    stop: int


class RowLayout:
    """The layout of a table's rows.

    >>> from hedgerow.tables.initializers import Zeros
    >>> from hedgerow.tables.optimizers import Adam
    >>> layout = RowLayout(TableConfig("t", (Segment(3, Zeros(), Adam()),)))
    >>> layout.state_floats, layout.row_bytes
    (7, 40)
    """

    def __init__(self, config: TableConfig) -> None:
        self.dim = config.dim
        self.places = () if config.serving else tuple(_places(config.segments))
        self.state_floats = self.places[-1].stop if self.places else 0
        if config.serving:
            self.row_bytes = sum(
                s.dim * s.compressor.bytes_per_value for s in config.segments if s.compressor
            )
        else:
            self.row_bytes = 4 * (self.dim + self.state_floats)
        self._segments = config.segments

    def split(self, raw: Float32[Tensor, "n state"]) -> States:
        """Returns raw state floats as named tensors. Copies, unless one state is all of `raw`."""
        named: States = tuple({} for _ in self._segments)
        for place in self.places:
            # numpy copies on this thread; torch would wake its thread pool, which training needs.
            part = raw
            if place.stop - place.start != self.state_floats or not raw.is_contiguous():
                part = torch.empty(
                    len(raw), place.stop - place.start, dtype=torch.float32, device="cpu"
                )
                part.numpy()[:] = raw.numpy()[:, place.start : place.stop]
            if place.state.dtype == "int64":
                part = part.view(torch.int64)
            named[place.segment][place.state.name] = (
                part if place.state.per == "value" else part[:, 0]
            )
        return named

    def named(self, raw: Float32[Tensor, "n state"]) -> States:
        """Returns raw state floats as named views, on any device.

        `raw` may have extra columns at the end. A state of integers is copied, because its floats
        need not be contiguous.
        """
        named: States = tuple({} for _ in self._segments)
        for place in self.places:
            part = raw[:, place.start : place.stop]
            if place.state.dtype == "int64":
                part = part.contiguous().view(torch.int64)
            named[place.segment][place.state.name] = (
                part if place.state.per == "value" else part[:, 0]
            )
        return named

    def starts(self) -> list[float]:
        """Returns the state floats of a new row."""
        return [
            x
            for place in self.places
            for x in _initial_floats(place.state, self._segments[place.segment].dim)
        ]

    def join(self, named: Sequence[Mapping[str, Tensor]], rows: int) -> Float32[Tensor, "n state"]:
        """Returns the raw floats of named states; the inverse of `split`.

        Raises if a state does not fit.
        """
        if len(named) != len(self._segments):
            raise InputError(
                f"states of {len(named)} segments given for a table of {len(self._segments)}."
            )
        raw = torch.empty(rows, self.state_floats, dtype=torch.float32, device="cpu")
        known = [set() for _ in self._segments]
        for place in self.places:
            known[place.segment].add(place.state.name)
            part = self._part(named[place.segment], place, rows)
            raw.numpy()[:, place.start : place.stop] = part.detach().cpu().numpy()
        for i, (given, names) in enumerate(zip(named, known, strict=True)):
            extra = set(given) - names
            if extra:
                raise InputError(f"segments[{i}] has no state {', '.join(sorted(extra))}.")
        return raw

    def _part(self, given: Mapping[str, Tensor], place: StatePlace, rows: int) -> Tensor:
        name, dtype = place.state.name, getattr(torch, place.state.dtype)
        where = f"state {name!r} of segments[{place.segment}]"
        if name not in given:
            raise InputError(f"{where} is missing; given: {', '.join(sorted(given)) or 'none'}.")
        per_value = place.state.per == "value"
        shape = (rows, place.stop - place.start) if per_value else (rows,)
        value = given[name]
        if value.dtype != dtype or tuple(value.shape) != shape:
            raise InputError(
                f"{where} is {value.dtype} {tuple(value.shape)}; it must be {dtype} {shape}."
            )
        least = place.state.least
        if not _all_fit(value, least):
            bad = ~value.isfinite() if least is None else ~(value.isfinite() & (value >= least))
            raise InputError(
                f"{where} holds {value[bad][0].item()}, which no update produces; the given rows "
                f"are damaged."
            )
        value = value if per_value else value[:, None].contiguous()
        return value.view(torch.float32) if place.state.dtype == "int64" else value


def _all_fit(value: Tensor, least: float | None) -> bool:
    """Returns whether all values are finite and at least `least`, in one pass over many rows."""
    if not value.numel():
        return True
    values = value.detach().cpu().numpy()
    low, high = values.min(), values.max()  # with a NaN both are NaN, and every comparison is False
    return bool((low > -math.inf if least is None else low >= least) and high < math.inf)


def _places(segments: Sequence[Segment]) -> Iterator[StatePlace]:
    start = 0
    for i, segment in enumerate(segments):
        if segment.optimizer is None:
            continue
        for state in segment.optimizer.rule().states:
            stop = start + state.floats(segment.dim)
            yield StatePlace(i, state, start, stop)
            start = stop


def _initial_floats(state: OptimizerState, dim: int) -> list[float]:
    if state.dtype == "int64":
        return list(struct.unpack("2f", struct.pack("q", int(state.initial))))
    return [state.initial] * state.floats(dim)


def slice_rows(layout: RowLayout, rows: int | None) -> int:
    """Returns the number of rows of one scan slice: `rows`, or about 16 MiB of rows if None."""
    if rows is None:
        row_bytes = 4 * (layout.dim + layout.state_floats)
        rows = max(1, min(_MOST_SLICE_ROWS, _SLICE_BYTES // row_bytes))
    return checks.count("rows", rows, least=1)


def entry_room(layout: RowLayout, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns uninitialized memory for the embeddings, states and times of `n` whole rows."""
    return (
        torch.empty(n, layout.dim, dtype=torch.float32, device="cpu"),
        torch.empty(n, layout.state_floats, dtype=torch.float32, device="cpu"),
        torch.empty(n, dtype=torch.int64, device="cpu"),
    )


def native_segment(segment: Segment) -> native.Segment:
    """Returns the core's description of one segment."""
    compressor = segment.compressor or Fp32()
    a, b = segment.init.parameters() if segment.init else (0.0, 0.0)
    rule = segment.optimizer.rule() if segment.optimizer else None
    initial = [x for s in (rule.states if rule else ()) for x in _initial_floats(s, segment.dim)]
    return native.Segment(
        segment.dim,
        segment.init.native_kind if segment.init else "constant",
        a,
        b,
        rule.name if rule else "",
        list(rule.settings) if rule else [],
        initial,
        compressor.codec(),
        segment.stochastic_rounding_float16,
    )
