"""Monolith's hash filters, one per shard, and gradient masks by a filter."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...core import checks
from ...core.errors import ConfigError, DtypeError, InputError
from ...core.hashing import id64
from ...core.protobuf import BYTES, VARINT, ProtobufReader, WireError
from ...core.shapes import Float, Int64
from ...tables.admission import CAPACITY_IDS, SPLIT_NUM, AdmissionRule, SlidingFilter
from ...tables.config import TableConfig
from ...tables.monolith_rules import OccurrenceThreshold, ProbabilisticThreshold, SlotThresholds

SLIDING, PROBABILISTIC, NONE = "sliding_hash_filter", "probabilistic_filter", "no_filter"


@dataclass(frozen=True, eq=False)
class HashFilter:
    """The admission rule of a shard's tables. `admit` None admits all ids."""

    admit: AdmissionRule | None = None
    counts: SlidingFilter | None = None


def create_hash_filters(
    ps_num: int,
    enable_hash_filter: bool,
    config: bytes = b"",
    filter_capacity: int = CAPACITY_IDS,
    filter_split_num: int = SPLIT_NUM,
    filter_equal_probability: bool = False,
    filter_type: str = SLIDING,
) -> list[HashFilter]:
    """Creates one filter per server, or one if there are none.

    They admit all ids if filters are off.

    `config` is Monolith's message of thresholds by slot.

    >>> [f.admit for f in create_hash_filters(2, False)]
    [None, None]
    >>> len(create_hash_filters(0, True))
    1
    """
    count = max(checks.count("ps_num", ps_num), 1)
    if filter_type not in (SLIDING, PROBABILISTIC, NONE):
        raise InputError(
            f"filter_type is {filter_type!r}; it must be one of {SLIDING}, {PROBABILISTIC}, {NONE}."
        )
    if not checks.flag("enable_hash_filter", enable_hash_filter) or filter_type == NONE:
        return [HashFilter() for _ in range(count)]
    default, slots = read_thresholds(config)
    if filter_type == PROBABILISTIC:
        equal = checks.flag("filter_equal_probability", filter_equal_probability)
        chance = ProbabilisticThreshold(default, slots, "equal" if equal else "unequal")
        return [HashFilter(chance) for _ in range(count)]
    rule = OccurrenceThreshold(default, slots, filter_capacity, filter_split_num)
    return [HashFilter(rule, rule.own_filter(seed=0)) for _ in range(count)]


def filtered(
    configs: Mapping[str, TableConfig], hash_filter: HashFilter | SlidingFilter | None
) -> dict[str, TableConfig]:
    """Returns the configs with the filter's rule. Without a filter each keeps its own."""
    if not isinstance(hash_filter, HashFilter):
        return dict(configs)
    admit = hash_filter.admit
    return {slot: dataclasses.replace(one, admit=admit) for slot, one in configs.items()}


def counts_of(hash_filter: HashFilter | SlidingFilter | None) -> SlidingFilter | None:
    """Returns the filter that counts ids for the tables of a shard."""
    if hash_filter is None or isinstance(hash_filter, SlidingFilter):
        return hash_filter
    if isinstance(hash_filter, HashFilter):
        return hash_filter.counts
    raise DtypeError(
        f"hash filter {hash_filter!r}; give what create_hash_filters makes, or a SlidingFilter."
    )


def read_thresholds(message: bytes) -> tuple[int, SlotThresholds]:
    """Returns the default threshold and the thresholds by slot from Monolith's message.

    >>> read_thresholds(b"")
    (0, ())
    """
    default, slots = 0, []
    try:
        reader = ProtobufReader(message)
        for number, wire_type in reader.fields():
            if number == 1:
                reader.expect(number, wire_type, BYTES)
                slots.append(_slot(reader.bytes()))
            elif number == 2:
                reader.expect(number, wire_type, VARINT)
                default = reader.int64()
            else:
                reader.skip(number, wire_type)
    except WireError as error:
        raise ConfigError(
            f"config holds no SlotOccurrenceThresholdConfig message ({error})."
        ) from error
    return default, tuple(slots)


def _slot(message: bytes) -> tuple[int, int]:
    found = {1: 0, 2: 0}
    reader = ProtobufReader(message)
    for number, wire_type in reader.fields():
        if number in found:
            reader.expect(number, wire_type, VARINT)
            found[number] = reader.int64()
        else:
            reader.skip(number, wire_type)
    return found[1], found[2]


class GradientMask:
    """Passes rows through unchanged, and gives rows of ids that are not admitted no gradient.

    Every backward counts each occurrence once, in order. A rule that only a table can decide,
    because it checks absent ids without counting them (`Chance`), masks nothing.

    >>> from hedgerow.tables.admission import Count
    >>> mask = GradientMask(Count(2), name="user")
    >>> rows, ids = torch.ones(3, 1, requires_grad=True), torch.tensor([5, 6, 5])
    >>> mask(rows, ids).sum().backward()
    >>> rows.grad.flatten().tolist()
    [0.0, 0.0, 1.0]
    """

    def __init__(
        self, admit: AdmissionRule, *, name: str, filter: SlidingFilter | None = None
    ) -> None:
        if not isinstance(admit, AdmissionRule):
            raise DtypeError(f"admit is {admit!r}; it must be an admission rule, as hr.Count(3).")
        self.filter = filter or admit.own_filter(id64(name, "table seed") & (2**64 - 1))
        self._rule = None
        if self.filter is not None and not admit.needs_step:
            self._rule = admit.rule(table=name, seed=0, filter=self.filter)

    def __call__(
        self, rows: Float[Tensor, "n dim"], ids: Int64[Tensor, "n"]
    ) -> Float[Tensor, "n dim"]:
        """Returns `rows`. Their gradients will be masked by `ids`."""
        checks.tensor("ids", ids, torch.int64, (None,))
        if not isinstance(rows, Tensor) or rows.dim() < 1 or len(rows) != len(ids):
            shape = tuple(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
            raise InputError(f"rows is {shape} for {len(ids)} ids; pass one row per id.")
        return _Masked.apply(rows, ids, self)  # pyright: ignore[reportReturnType]

    def admitted(self, ids: Int64[Tensor, "n"]) -> Tensor:
        """Counts every id once, in order, and returns which are admitted."""
        checks.tensor("ids", ids, torch.int64, (None,))  # the counting code reads memory unchecked
        out = torch.ones_like(ids, dtype=torch.bool)
        if self._rule is not None:
            self._rule.ask(ids.data_ptr(), 0, len(ids), 0, out.data_ptr())
        return out


class _Masked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, ids: Tensor, mask: GradientMask) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.mask = mask
        return rows.view_as(rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (ids,) = ctx.saved_tensors
        kept = ctx.mask.admitted(ids).to(grad.device)
        return torch.where(kept.view(-1, *[1] * (grad.dim() - 1)), grad, 0), None, None
