"""What a model needs beside its tables: the reserve that its dense part and its batches take."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from ...core import checks
from ...core.errors import ConfigError
from ...core.units import format_bytes
from ..problem.topology import Reserve, Topology
from .layout import ceil
from .step_load import ID_BYTES, exact

# Parameters, about twice as much optimizer state, and three times in buckets of gradients.
_DENSE_COPIES = 6
_INPUT_COPIES = 20  # two batches under way, ten copies of each


def dense_size(parameter_bytes: int, buffer_bytes: int = 0, *, inference: bool = False) -> int:
    """Bytes of what is not in tables, while it is trained.

    >>> dense_size(100, 7), dense_size(100, 7, inference=True)
    (607, 107)
    """
    checks.whole("dense_size", "parameter_bytes", parameter_bytes)
    checks.whole("dense_size", "buffer_bytes", buffer_bytes)
    return parameter_bytes * (1 if inference else _DENSE_COPIES) + buffer_bytes


def input_size(ids_per_sample: Iterable[float], batch: int, *, inference: bool = False) -> int:
    """Bytes of the id features of the batches that are under way.

    >>> input_size([1, 2.5], 100)
    56000
    """
    checks.whole("input_size", "batch", batch)
    ids = sum((exact(count) * batch for count in ids_per_sample), Fraction(0))
    return ceil(ids * ID_BYTES) * (1 if inference else _INPUT_COPIES)


def reserve_for(
    topology: Topology,
    *,
    dense_bytes: int = 0,
    ids_per_sample: Iterable[float] = (),
    batch: int = 0,
    inference: bool = False,
    hbm_fraction: float = 0.15,
    ddr_fraction: float = 0.10,
) -> Reserve:
    """The reserve of a job: shares of both memories, its dense part and its batches.

    The latter two lie on the card, or on a machine without cards once for each of its ranks.

    >>> one = Topology(world=1, hbm_per_device=1000, ddr_per_machine=1000)
    >>> reserve_for(one, dense_bytes=100, ids_per_sample=[1], batch=2).of(one).budget().hbm
    430
    """
    inputs = input_size(ids_per_sample, batch, inference=inference)
    taken = dense_bytes + inputs
    if topology.device == "cpu":
        ranks = max(machine.ranks for machine in topology.machines)
        return Reserve(
            hbm_fraction=hbm_fraction, ddr_fraction=ddr_fraction, ddr_bytes=ranks * taken
        )
    reserve = Reserve(hbm_fraction=hbm_fraction, hbm_bytes=taken, ddr_fraction=ddr_fraction)
    smallest = min(topology.hbm_by_device)
    if int((1 - hbm_fraction) * smallest) < taken:
        raise ConfigError(
            f"No HBM is left for tables: the dense part takes {format_bytes(dense_bytes)}, batches "
            f"of {batch} samples {format_bytes(inputs)} and the reserve {hbm_fraction:.0%} of a "
            f"card of {format_bytes(smallest)}. Use a smaller batch or model, reserve less, or "
            f"plan for larger cards."
        )
    return reserve
