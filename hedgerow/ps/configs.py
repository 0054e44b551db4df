"""Table configurations on their way to a server, and how two sets of them differ."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.errors import ConfigError
from ..tables.config import Segment, TableConfig
from ..tables.multi.multi_config import MultiConfig
from ..tables.schedules import Rate, Schedule, rate_at


def document_of(config: MultiConfig) -> list[dict[str, Any]]:
    """Fit for JSON. A rate that is a function stays with the client: rates travel with updates."""
    return [_sendable(table).to_dict() for table in config.configs]


def _sendable(config: TableConfig) -> TableConfig:
    segments = tuple(_without_function(segment) for segment in config.segments)
    return dataclasses.replace(config, segments=segments)


def _without_function(segment: Segment) -> Segment:
    rate = getattr(segment.optimizer, "lr", None)
    if segment.optimizer is None or not callable(rate) or isinstance(rate, Schedule):
        return segment
    fixed = dataclasses.replace(segment.optimizer, lr=0.0)  # pyright: ignore[reportArgumentType]
    return dataclasses.replace(segment, optimizer=fixed)


def config_of(document: object) -> MultiConfig:
    """What `document_of` made."""
    if not isinstance(document, list) or not document:
        raise ConfigError("the tables of a server are a list of TableConfig.to_dict().")
    tables = [TableConfig.from_dict(entry) for entry in document]
    named = {table.name: table for table in tables}
    if len(named) != len(tables):
        raise ConfigError(f"a table stands twice among {[table.name for table in tables]}.")
    return MultiConfig.of(named)


def fingerprint(config: MultiConfig) -> str:
    """Equal for equal tables, in every process."""
    return hashlib.sha256(config.text.encode()).hexdigest()[:16]


def difference(ours: MultiConfig, theirs: MultiConfig) -> str:
    """What differs first, in words; empty if nothing does.

    >>> from hedgerow.tables.config import Segment
    >>> from hedgerow.tables.initializers import Zeros
    >>> from hedgerow.tables.optimizers import Sgd
    >>> def one(lr):
    ...     return MultiConfig.of({"item": TableConfig("any", (Segment(1, Zeros(), Sgd(lr=lr)),))})
    >>> difference(one(1.0), one(2.0))
    "table 'item': segments[0].optimizer.lr is 1.0 on the server and 2.0 here"
    """
    if ours.names != theirs.names:
        return f"the server has tables {list(ours.names)}, and here are {list(theirs.names)}"
    for name, mine, other in zip(ours.names, ours.configs, theirs.configs, strict=True):
        pair = (dataclasses.replace(one, slot_key=None).to_dict() for one in (mine, other))
        found = _difference("", *pair)
        if found and ours.text != theirs.text:
            return f"table {name!r}: {found}"
    return ""


def _difference(at: str, mine: object, other: object) -> str:
    if isinstance(mine, Mapping) and isinstance(other, Mapping):
        for name in sorted({*mine, *other}):
            where = f"{at}.{name}" if at else str(name)
            found = _difference(where, mine.get(name), other.get(name))
            if found:
                return found
        return ""
    if isinstance(mine, list) and isinstance(other, list) and len(mine) == len(other):
        pairs = enumerate(zip(mine, other, strict=True))
        return next((d for i, (a, b) in pairs if (d := _difference(f"{at}[{i}]", a, b))), "")
    return "" if mine == other else f"{at} is {mine!r} on the server and {other!r} here"


def rates_now(
    config: MultiConfig, rates: Sequence[Rate] | None, step: int | None
) -> tuple[float, ...]:
    """One number a segment, tables in order: given, or the optimizers' own, at `step`."""
    given = config.rates_of(rates)
    now: list[float] = []
    for table, sources in zip(config.configs, given, strict=True):
        own = [s.optimizer.rate() if s.optimizer else 0.0 for s in table.segments]
        for source in own if sources is None else sources:
            if callable(source) and step is None:
                raise ConfigError(
                    f"table {table.name!r} learns by the step, and step is None; pass step=."
                )
            now.append(rate_at(source, step or 0))
    return tuple(now)
