"""Which tables can live on a device, and their segments as kernels know them."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..core.errors import ConfigError
from ..kernels.layout import FirstValues, Part, drifts
from ..kernels.rules import RULES
from .compressors import Bf16, Fp16, Fp32
from .config import Segment, TableConfig
from .layout import RowLayout
from .optimizer_base import Rule

_MAX_DIM = 1024  # a row is held in the registers of one program


def check_config(config: TableConfig) -> None:
    """Raises and names what a device does not offer; docs/architecture.md says why."""
    wrong = [reason for reason, holds in _reasons(config) if holds]
    if wrong:
        raise ConfigError(
            f"table {config.name!r} cannot live on a device: {', '.join(wrong)}. Use HostTable."
        )


def _reasons(config: TableConfig) -> Iterator[tuple[str, bool]]:
    yield f"its dim is {config.dim}, above {_MAX_DIM}", config.dim > _MAX_DIM
    for i, segment in enumerate(config.segments):
        rule = _rule_of(segment).name
        plain = Fp32 if config.serving else Fp32 | Fp16 | Bf16  # in training these change nothing
        compressed = not isinstance(segment.compressor, plain | None)
        yield f"segments[{i}] learns by {segment.optimizer!r}", rule not in RULES
        rounds = segment.stochastic_rounding_float16
        yield f"segments[{i}] rounds to half precision", rounds
        yield f"the compressor of segments[{i}] is {segment.compressor!r}", compressed


def _rule_of(segment: Segment) -> Rule:
    return segment.optimizer.rule() if segment.optimizer else Rule("sgd", (0.0,))


def parts_of(config: TableConfig, layout: RowLayout, device: torch.device) -> Iterator[Part]:
    """The segments; those of a serving table neither learn nor draw first values."""
    start, state = 0, config.dim
    for i, segment in enumerate(config.segments):
        first = FirstValues("constant", 0.0, 0.0, config.row_seed)
        if segment.init is not None:
            first = FirstValues(
                segment.init.native_kind, *segment.init.parameters(), config.row_seed
            )
        rule = _rule_of(segment)
        table = drifts(rule.settings[0], rule.settings[2]) if rule.name == "dense_adam" else ()
        numbers = Part.numbers_of(rule.settings, [s.initial for s in rule.states], device, table)
        yield Part(start, segment.dim, state, first, rule.name, numbers)
        start += segment.dim
        state += sum(p.stop - p.start for p in layout.places if p.segment == i)
