"""Bytes of a row: its values with the optimizer's state, as published and as our tables keep it."""

from __future__ import annotations

from fractions import Fraction

from ...core import checks
from ...tables.config import Optimizer
from ..problem.table_spec import STATE_PER_VALUE, TableSpec
from .layout import Layout, align, ceil

_ALIGNMENT = 16
_FLOAT = 4
_OTHER_NAMES = {"rowwise_adagrad": "RowAdagrad"}


def row_bytes(spec: TableSpec, layout: Layout, *, inference: bool = False) -> int:
    """Of one row, padded; without state in inference.

    Our tables train in fp32 whatever `dtype` the model sees, and serve in that `dtype`.

    >>> from .layout import HEDGEROW, STRICT
    >>> half = TableSpec(name="t", rows=9, dim=64, dtype="fp16", optimizer="adam")
    >>> row_bytes(half, STRICT), row_bytes(half, HEDGEROW), row_bytes(half, STRICT, inference=True)
    (384, 784, 128)
    """
    if inference:
        return align(spec.dim * spec.element_bytes, _ALIGNMENT)
    if layout.own_rows:
        return align(_FLOAT * (spec.dim + state_floats(spec.optimizer, spec.dim)), _ALIGNMENT)
    values = spec.dim * (1 + _published_state(spec))
    return align(ceil(values * spec.element_bytes), _ALIGNMENT)


def _published_state(spec: TableSpec) -> Fraction:
    """State beside each value, in values."""
    if spec.optimizer == "rowwise_adagrad":
        return Fraction(1, spec.dim)
    return Fraction(STATE_PER_VALUE.get(spec.optimizer, 1))


def state_floats(optimizer: str, dim: int) -> int:
    """Floats that one of our optimizers, with its usual settings, keeps beside `dim` values.

    >>> state_floats("sgd", 8), state_floats("AdamW", 8), state_floats("rowwise_adagrad", 8)
    (0, 17, 1)
    """
    if optimizer == "none":
        return 0
    states = _optimizer_named(optimizer).rule().states
    return sum(state.floats(dim) for state in states)


def _optimizer_named(name: str) -> Optimizer:
    known = Optimizer.members()
    name = _OTHER_NAMES.get(name, name)
    found = known.get(name) or {kind.lower(): known[kind] for kind in known}.get(name.lower())
    if found is None:
        checks.unknown("optimizer", name, known)
    return found()
