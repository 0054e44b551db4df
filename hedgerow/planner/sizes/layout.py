"""The bytes of a row in each kind of table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from ...core import checks
from ...tables.config import Optimizer
from ..problem.table_spec import STATE_PER_VALUE, TableSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """The slots of a hash table: how many its rows need, and their bytes without row values.

    >>> strict = Slots(slot_bytes=21, bucket=128, bucket_bytes=4)
    >>> strict.count(1000), strict.metadata(1000)
    (1024, 21536)
    """

    slot_bytes: int | Fraction
    bucket: int = 1
    bucket_bytes: int = 0
    unit: int | None = None  # the slot count is a multiple of this; None: of `bucket`
    fullest: Fraction = Fraction(1)  # largest share of slots that rows may fill
    extra: int = 0  # slots besides the buckets
    fixed_bytes: int = 0

    def count(self, rows: int) -> int:
        """Returns the number of slots for `rows` rows."""
        slots = -(-rows * self.fullest.denominator // self.fullest.numerator)
        return align(slots, self.unit or self.bucket) + self.extra

    def per_slot(self) -> Fraction:
        """Returns the bytes of a slot, with its share of the bucket header."""
        return self.slot_bytes + Fraction(self.bucket_bytes, self.bucket)

    def metadata(self, rows: int) -> int:
        """Returns the bytes that `rows` rows take besides their values."""
        return ceil(self.count(rows) * self.per_slot()) + self.fixed_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How tables are stored in the two memories.

    `whole` describes a table that is all in HBM, `front` the HBM part of HYBRID, `cache` that of
    CACHING, `host` the part in host memory, `counter` the counts of admission.

    With `one_index` a single index in HBM holds all ids, and only values are divided; otherwise
    each part is a table of its own. `spread` is extra capacity for ranks that share ids by hashing,
    in standard deviations. With `own_rows` rows are stored as Hedgerow's tables do: trained in
    fp32, with the states of Hedgerow's optimizers, and sent by their owners before pooling.
    """

    name: str
    whole: Slots
    front: Slots
    cache: Slots
    host: Slots
    counter: Slots
    one_index: bool = False
    host_index_on_card: bool = True
    counter_on_card: bool = True
    spread: Fraction = Fraction(0)
    own_rows: bool = False

    def with_buckets(self, rows: int, counter: int) -> Layout:
        """Returns the layout with other bucket capacities for rows and for the admission counter.

        >>> STRICT.with_buckets(256, 512).host.count(300)
        512
        """
        checks.whole("Layout", "bucket_capacity", rows, least=1)
        checks.whole("Layout", "counter_bucket_capacity", counter, least=1)
        return replace(
            self,
            whole=replace(self.whole, bucket=rows),
            host=replace(self.host, bucket=rows),
            counter=replace(self.counter, bucket=counter),
        )


def align(count: int, unit: int) -> int:
    """Returns the next multiple of `unit`, at least one `unit`."""
    return max(1, -(-count // unit)) * unit


def ceil(value: Fraction | int) -> int:
    """Returns the next whole number."""
    return -(-value.numerator // value.denominator)


_ROW = Slots(slot_bytes=17, unit=16, bucket=128, bucket_bytes=4)  # key 8, score 8, digest 1
BASELINE = Layout(
    name="baseline",
    whole=_ROW,
    front=_ROW,
    cache=_ROW,
    host=_ROW,
    counter=replace(_ROW, bucket=1024),
    one_index=True,
)
"""The published estimate: one index, and values divided to the byte."""

# Key 8, score 8, digest 1, reference count 4.
_TABLE = Slots(slot_bytes=21, bucket=128, bucket_bytes=4)
_TIER = replace(_TABLE, bucket=1024)
STRICT = Layout(name="strict", whole=_TABLE, front=_TIER, cache=_TIER, host=_TABLE, counter=_TIER)
"""The allocation of the published run time: two hash tables if a table is in both memories."""

# A device table has 16 ids and 16 time stamps per bucket, and 2 more slots in a bucket whose other
# 14 are unused. Every id has a slot up to a load of four fifths.
_CARD = Slots(slot_bytes=16, bucket=16, fullest=Fraction(4, 5), extra=2, fixed_bytes=14 * 16)
# The device stores more for the fast rows of two tiers. A cache stores the time of last use and a
# dirty flag: 5 bytes per slot. A hybrid stores use counts: 32 bytes per row. A hybrid can be
# fuller, because a row without a slot stays on the host.
_CACHE = replace(_CARD, slot_bytes=16 + 5)
_FULLER = Fraction(17, 20)
_FRONT = replace(_CARD, slot_bytes=16 + 32 * _FULLER, fullest=_FULLER)
# A host table has a time stamp per row, and an index of 64-byte buckets for 4 ids. Its 64 shards
# grow by half at different times: 16 * 0.5 / ln 1.5 = 19.73 bytes per row on average. Shards fill
# unevenly; 4 % more, and the smallest size of all shards (6 buckets), cover that for any number of
# rows.
_INDEX_BYTES = Fraction(41, 2)
_HOST = Slots(slot_bytes=8 + _INDEX_BYTES, fixed_bytes=64 * 6 * 64)
# A sliding filter has cells of 8 bytes and doubles when three quarters are used: 64 / 3 bytes per
# id. Later arrays have cells of 4 bytes and are 5 / 6 full, but an id may have a cell in each of
# six arrays: 28.8.
_FILTER = Slots(slot_bytes=Fraction(144, 5), fixed_bytes=6 * 128 * 8)
HEDGEROW = Layout(
    name="hedgerow",
    whole=_CARD,
    front=_FRONT,
    cache=_CACHE,
    host=_HOST,
    counter=_FILTER,
    host_index_on_card=False,
    counter_on_card=False,
    spread=Fraction(7, 2),
    own_rows=True,
)
"""Hedgerow's own tables."""

LAYOUTS = {layout.name: layout for layout in (BASELINE, STRICT, HEDGEROW)}


_ALIGNMENT = 16
_FLOAT = 4
_OTHER_NAMES = {"rowwise_adagrad": "RowAdagrad"}


def row_bytes(spec: TableSpec, layout: Layout, *, inference: bool = False) -> int:
    """Returns the padded bytes of a row. Inference needs no optimizer state.

    Hedgerow's tables train in fp32 whatever `dtype` the model sees, and serve in that `dtype`.

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
    """Returns optimizer state per value, in values, as published."""
    if spec.optimizer == "rowwise_adagrad":
        return Fraction(1, spec.dim)
    return Fraction(STATE_PER_VALUE.get(spec.optimizer, 1))


def state_floats(optimizer: str, dim: int) -> int:
    """Returns the state floats of a Hedgerow optimizer with default settings for `dim` values.

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
