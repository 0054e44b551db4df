"""Optimizer states as the original saves them: which message and which fields for each kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ..core.protobuf import BYTES, VARINT, Floats, Reader, bytes_field, floats_field, varint_field
from ..tables.optimizer_base import Optimizer

_DUMP = 1  # OptimizerDump: one SingleOptimizerDump a segment
WRITES_NONE = "moving_average"


@dataclass(frozen=True, slots=True)
class Form:
    """One kind of SingleOptimizerDump: its number there, and its fields by name of our state."""

    kind: str
    number: int
    floats: Mapping[str, int] = field(default_factory=dict)
    integers: Mapping[str, int] = field(default_factory=dict)


_ORIGINAL = (
    Form("adagrad", 1, {"norm": 1}),
    Form("sgd", 2),
    Form("ftrl", 3, {"zero": 1, "norm": 2}),
    # Field 2, last_update_step, is written by the original and read by nobody.
    Form("dynamic_wd_adagrad", 4, {"norm": 1}),
    Form("adadelta", 6, {"accum": 1, "accum_update": 2}),
    Form("adam", 7, {"m": 1, "v": 2, "beta1_power": 3, "beta2_power": 4}),
    Form("amsgrad", 8, {"m": 1, "v": 2, "vhat": 3, "beta1_power": 4, "beta2_power": 5}),
    Form("momentum", 9, {"n": 1}),
    Form("rmsprop", 11, {"n": 1}),
    Form("rmspropv2", 12, {"n": 1}),
    Form("group_ftrl", 13, {"zero": 1, "norm": 2}),
    Form("batch_softmax", 14, {}, {"global_step": 1}),
    Form("group_adagrad", 15, {"grad_square_sum": 1}),
)
_BY_NUMBER = {form.number: form for form in _ORIGINAL}
# User-level optimizers whose state is the original's, number for number.
_SAME_NUMBERS = (
    Form("Sgd", 2),
    Form("Adagrad", 1, {"sum": 1}),
    Form("Ftrl", 3, {"zero": 1, "norm": 2}),
)
_BY_KIND = {form.kind: form for form in (*_ORIGINAL, *_SAME_NUMBERS)}


@dataclass(frozen=True, slots=True)
class Dump:
    """One SingleOptimizerDump, not yet decoded: its number in the oneof, and its bytes."""

    number: int
    body: bytes

    @property
    def kind(self) -> str:
        """The optimizer's name, or its number if nobody here knows it."""
        return _BY_NUMBER[self.number].kind if self.number in _BY_NUMBER else f"no. {self.number}"


def form_of(optimizer: Optimizer | None) -> Form | None:
    """How the states of `optimizer` are saved; None if the original has no form for them.

    >>> from hedgerow.tables.original import Ftrl
    >>> form_of(Ftrl()).floats
    {'zero': 1, 'norm': 2}
    """
    return None if optimizer is None else _BY_KIND.get(optimizer.kind)


def decode_dumps(data: bytes) -> tuple[Dump, ...]:
    """The dumps of an OptimizerDump, in the order of their segments."""
    found: list[Dump] = []
    reader = Reader(data)
    for number, wire_type in reader.fields():
        if number != _DUMP:
            reader.skip(number, wire_type)
            continue
        reader.expect(number, wire_type, BYTES)
        found.append(_single(reader.bytes()))
    return tuple(found)


def _single(data: bytes) -> Dump:
    """The last known member of the oneof wins, as protobuf says; number 0 = none was set."""
    dump = Dump(0, b"")
    reader = Reader(data)
    for number, wire_type in reader.fields():
        if wire_type == BYTES and (number in _BY_NUMBER or dump.number == 0):
            dump = Dump(number, reader.bytes())
        else:
            reader.skip(number, wire_type)
    return dump


def decode_states(form: Form, body: bytes) -> tuple[dict[str, Floats], dict[str, int]]:
    """Float states and integer states by name; absent ones are left out, unknown fields skipped.

    >>> from hedgerow.core.protobuf import floats_field
    >>> floats, _ = decode_states(_BY_KIND["ftrl"], floats_field(2, np.ones(2, np.float32)))
    >>> floats["norm"].tolist()
    [1.0, 1.0]
    """
    names = {number: name for name, number in form.floats.items()}
    integers = {number: name for name, number in form.integers.items()}
    parts: dict[str, list[Floats]] = {}
    whole: dict[str, int] = {}
    reader = Reader(body)
    for number, wire_type in reader.fields():
        if number in names:
            parts.setdefault(names[number], []).append(reader.floats(number, wire_type))
        elif number in integers:
            reader.expect(number, wire_type, VARINT)
            whole[integers[number]] = reader.int64()
        else:
            reader.skip(number, wire_type)
    floats = {name: p[0] if len(p) == 1 else np.concatenate(p) for name, p in parts.items()}
    return floats, whole


def encode_dump(form: Form, floats: Mapping[str, Floats], integers: Mapping[str, int]) -> bytes:
    """One field of an OptimizerDump: the dump of one segment of one row."""
    fields = [floats_field(number, floats[name]) for name, number in form.floats.items()]
    fields += [varint_field(number, integers[name]) for name, number in form.integers.items()]
    return bytes_field(_DUMP, bytes_field(form.number, b"".join(fields)))
