"""The time of one step of a mode: the formula that calibrations are fitted to and plans rest on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

import numpy as np
from numpy.typing import NDArray

from .mode_cost import ModeCost
from .row_moves import N, RowMoves
from .time_parameters import overlapped

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Speeds:
    """Bytes a millisecond of memories, and how much tiers overlap."""

    near: float
    host_read: float
    host_write: float
    overlap: float


@dataclass(frozen=True, slots=True)
class Step(Generic[N]):
    """What a step does: bytes are of a key, `id_bytes` of the vector of an id."""

    keys: N  # distinct ones, of all tables
    ids: N  # equal ones too
    read: N
    write: N
    id_bytes: N
    far: N  # share of keys whose rows lie on the host
    tables: N
    moving: RowMoves[N]
    handled: N  # ids whose vectors the host handles, as `few_ids` has them
    alone: N  # those that one thread does
    pools: N  # times that all threads are woken up


def step_ms(step: Step[float], cost: ModeCost, speeds: Speeds) -> float:
    """Milliseconds of a step, by section 12.1 and by what our own paths were measured to add.

    >>> from .row_moves import NO_MOVES
    >>> one = Step(1000.0, 1000.0, 512.0, 256.0, 256.0, 0.5, 1.0, NO_MOVES, 0.0, 0.0, 0.0)
    >>> round(step_ms(one, ModeCost(0.5, 1e-3), Speeds(1e6, 1e5, 1e5, 1.0)), 3)
    5.724
    """
    return _step_ms(step, cost, speeds, overlapped, min)


def steps_ms(steps: Step[Floats], cost: ModeCost, speeds: Speeds) -> Floats:
    """`step_ms` of many."""
    return _step_ms(steps, cost, speeds, _overlapped, np.minimum)


def _step_ms(
    step: Step[N],
    cost: ModeCost,
    speeds: Speeds,
    both: Callable[[N, N, float], N],
    least: Callable[[N, N], N],
) -> N:
    every = step.read + step.write
    near = step.keys * (cost.key_ms + (1 - step.far) * every / speeds.near)
    near = near + step.ids * (cost.id_ms + step.id_bytes * cost.id_byte_ms)
    host = cost.host
    if host.host_bytes_per_ms is None:
        row = step.read / speeds.host_read + step.write / speeds.host_write
    else:
        row = every / host.host_bytes_per_ms
    missed = step.keys * step.far
    far = missed * (host.host_key_ms + row)
    # Few vectors stay in the caches, of many nearly all come from memory.
    vectors = step.handled * step.id_bytes
    cold = vectors * (vectors / (vectors + host.cache_bytes)) * host.cold_byte_ms
    if not cost.together:
        return cost.launch_ms + both(near, far, speeds.overlap) + cold
    # The host runs ahead of the device until it must know which rows are absent: then it works
    # on those, and the device waits.
    some: N = -np.expm1(-missed)  # pyright: ignore[reportAssignmentType]
    far = far + cold + some * host.host_ms  # by the chance that a step has such keys
    asked: N = -np.expm1(-missed / step.tables)  # pyright: ignore[reportAssignmentType]
    far = far + step.tables * asked * host.host_table_ms
    moving = step.moving
    far = far + moving.looks * host.look_ms + moving.moves * host.move_ms
    far = far + moving.crowded * host.crowded_key_ms
    alone = host.alone_id_ms + step.id_bytes * host.alone_byte_ms
    # Others help as soon as they have woken up: until then one thread does all.
    woken = least(step.pools * host.pool_ms, (step.handled - step.alone) * alone)
    far = far + step.alone * alone + woken
    launch = cost.launch_ms + step.tables * (cost.table_ms or 0.0)
    return both(launch, near, cost.ahead) + far


def _overlapped(one: Floats, other: Floats, overlap: float) -> Floats:
    most, least = np.maximum(one, other), np.minimum(one, other)
    return most * (1 + (least / np.maximum(most, 1e-300)) ** overlap) ** (1 / overlap)
