"""What a worker finds out before it sends: values that are refused, and rates as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor

from ..core.errors import NotFiniteError
from ..core.shapes import Float32
from ..tables import arguments
from ..tables.multi.multi_config import MultiConfig
from ..tables.multi.parts import first_not_finite, float_offsets
from ..tables.schedules import Rate, rate_at
from ..tables.store import TableKeys


def check_finite(
    name: str, config: MultiConfig, keys: TableKeys, flat: Float32[Tensor, "floats"]
) -> None:
    """Refuses what is not finite for tables that reject it, before any server has changed a row."""
    if first_not_finite(flat) < 0:
        return
    at = float_offsets(keys.splits, config.dims)
    for table, (start, stop) in zip(config.configs, pairwise(at), strict=True):
        own = flat[start:stop]
        found = first_not_finite(own)
        if found >= 0 and table.not_finite == "reject":
            row, column = divmod(found, table.dim)
            raise NotFiniteError(
                f"{name} of table {table.name!r} at [{row}, {column}] is {float(own[found])}; the "
                f"table rejects what is not finite, and nothing was sent. Find its source, or make "
                f"the table with not_finite='drop'."
            )


def rates_now(
    config: MultiConfig, keys: TableKeys, rates: Sequence[Rate] | None, step: int | None
) -> list[float]:
    """One rate a segment, as numbers: servers know no schedules. 0 for a table without keys."""
    given = config.rates_of(rates)
    found: list[float] = []
    for table, own, (start, stop) in zip(config.configs, given, pairwise(keys.splits), strict=True):
        sources = own
        if sources is None:
            sources = [s.optimizer.rate() if s.optimizer else 0.0 for s in table.segments]
        if start == stop:
            found += [0.0] * len(sources)
            continue
        needed = any(callable(source) for source in sources) or any(
            s.optimizer and s.optimizer.follows_step for s in table.segments
        )
        at = arguments.needed_step(step, needed, table.name, "learns")
        found += [rate_at(source, at) for source in sources]
    return found


def fixed_rates(config: MultiConfig) -> tuple[float, ...] | None:
    """One rate a segment, where no table learns by the step; else None."""
    optimizers = [segment.optimizer for table in config.configs for segment in table.segments]
    sources = [rule.rate() if rule else 0.0 for rule in optimizers]
    follow = any(rule and rule.follows_step for rule in optimizers)
    if follow or any(callable(source) for source in sources):
        return None
    return tuple(rate_at(source, 0) for source in sources)
