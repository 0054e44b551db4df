"""The bytes of a row in each kind of table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from ...core import checks
from ...tables.config import Optimizer
from ..problem.table_spec import STATE_PER_VALUE, TableSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """One hash table: how many slots rows take, and the bytes of a slot beside its values.

    >>> strict = Slots(slot_bytes=21, bucket=128, bucket_bytes=4)
    >>> strict.count(1000), strict.metadata(1000)
    (1024, 21536)
    """

    slot_bytes: int | Fraction
    bucket: int = 1
    bucket_bytes: int = 0
    unit: int | None = None  # slots come in multiples of it; None: in whole buckets
    fullest: Fraction = Fraction(1)  # share of the slots that rows may fill
    extra: int = 0  # slots beside the buckets
    fixed_bytes: int = 0

    def count(self, rows: int) -> int:
        """Slots for so many rows."""
        slots = -(-rows * self.fullest.denominator // self.fullest.numerator)
        return align(slots, self.unit or self.bucket) + self.extra

    def per_slot(self) -> Fraction:
        """Bytes of a slot with its part of the bucket's header."""
        return self.slot_bytes + Fraction(self.bucket_bytes, self.bucket)

    def metadata(self, rows: int) -> int:
        """Bytes beside the values of so many rows."""
        return ceil(self.count(rows) * self.per_slot()) + self.fixed_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How tables lie in the two memories.

    `whole` holds a table that is all in HBM, `front` the HBM part of HYBRID, `cache` that of
    CACHING, `host` what lies in host memory, `counter` an admission's counts. With `one_index` ids
    are kept once, on the card, and only values are divided; otherwise each part is a table.
    `spread` is the head-room of ranks that share ids by hashing, in standard deviations. With
    `own_rows` rows are as our tables keep them: trained in fp32, with the states of our optimizers,
    and sent by their owners before anything is pooled.
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
        """The same with other bucket capacities: of rows, and of the admission's counter.

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
    """The next multiple of `unit`; at least one."""
    return max(1, -(-count // unit)) * unit


def ceil(value: Fraction | int) -> int:
    """The next whole number."""
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
"""The published estimate: one index, values divided to the byte."""

# Key 8, score 8, digest 1, reference count 4.
_TABLE = Slots(slot_bytes=21, bucket=128, bucket_bytes=4)
_TIER = replace(_TABLE, bucket=1024)
STRICT = Layout(name="strict", whole=_TABLE, front=_TIER, cache=_TIER, host=_TABLE, counter=_TIER)
"""What the published run time allocates: two hash tables where a table lies in both memories."""

# A device table: 16 ids and 16 time stamps a bucket; two slots more are in a bucket of their own,
# of which 14 are not there. Up to four fifths full every id finds room.
_CARD = Slots(slot_bytes=16, bucket=16, fullest=Fraction(4, 5), extra=2, fixed_bytes=14 * 16)
# Of the fast rows of two tiers more is known on the card: of a cache when a row was last used and
# whether it was changed, five bytes a slot; of a hybrid how often ids were used, 32 bytes a row. A
# row of a hybrid that finds no room stays on the host, so it may be fuller.
_CACHE = replace(_CARD, slot_bytes=16 + 5)
_FULLER = Fraction(17, 20)
_FRONT = replace(_CARD, slot_bytes=16 + 32 * _FULLER, fullest=_FULLER)
# A host table: a time stamp a row, and an index of 64-byte buckets for 4 ids. Its 64 shards grow by
# halves at different times: 16 * 0.5 / ln 1.5 = 19.73 bytes a row on average. Shards fill unevenly:
# 4 % more, and the smallest size of all shards (6 buckets), cover that for any number of rows.
_INDEX_BYTES = Fraction(41, 2)
_HOST = Slots(slot_bytes=8 + _INDEX_BYTES, fixed_bytes=64 * 6 * 64)
# A sliding filter: cells of 8 bytes that double when three quarters are used are 64 / 3 bytes an
# id; later ones of 4 bytes at 5 / 6 full, but an id may have one in each of six arrays: 28.8.
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
"""Our own tables."""

LAYOUTS = {layout.name: layout for layout in (BASELINE, STRICT, HEDGEROW)}


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
