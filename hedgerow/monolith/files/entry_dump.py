"""Monolith's saved form of a row: its EntryDump message, with the states of each optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...core.protobuf import (
    BYTES,
    FIXED64,
    VARINT,
    Floats,
    ProtobufReader,
    bytes_field,
    floats_field,
    sfixed64_field,
    varint_field,
)
from ...tables.optimizers import Optimizer

_DUMP = 1  # field of OptimizerDump: one SingleOptimizerDump per segment
WRITES_NONE = "moving_average"


@dataclass(frozen=True, slots=True)
class DumpForm:
    """One kind of SingleOptimizerDump: its number, and its field numbers by state name."""

    kind: str
    number: int
    floats: Mapping[str, int] = field(default_factory=dict)
    integers: Mapping[str, int] = field(default_factory=dict)


_ORIGINAL = (
    DumpForm("adagrad", 1, {"norm": 1}),
    DumpForm("sgd", 2),
    DumpForm("ftrl", 3, {"zero": 1, "norm": 2}),
    # Monolith writes field 2, last_update_step, but never reads it.
    DumpForm("dynamic_wd_adagrad", 4, {"norm": 1}),
    DumpForm("adadelta", 6, {"accum": 1, "accum_update": 2}),
    DumpForm("adam", 7, {"m": 1, "v": 2, "beta1_power": 3, "beta2_power": 4}),
    DumpForm("amsgrad", 8, {"m": 1, "v": 2, "vhat": 3, "beta1_power": 4, "beta2_power": 5}),
    DumpForm("momentum", 9, {"n": 1}),
    DumpForm("rmsprop", 11, {"n": 1}),
    DumpForm("rmspropv2", 12, {"n": 1}),
    DumpForm("group_ftrl", 13, {"zero": 1, "norm": 2}),
    DumpForm("batch_softmax", 14, {}, {"global_step": 1}),
    DumpForm("group_adagrad", 15, {"grad_square_sum": 1}),
)
_BY_NUMBER = {form.number: form for form in _ORIGINAL}
# Optimizers of Hedgerow's API whose state equals Monolith's, number for number.
_SAME_NUMBERS = (
    DumpForm("Sgd", 2),
    DumpForm("Adagrad", 1, {"sum": 1}),
    DumpForm("Ftrl", 3, {"zero": 1, "norm": 2}),
)
_BY_KIND = {form.kind: form for form in (*_ORIGINAL, *_SAME_NUMBERS)}


@dataclass(frozen=True, slots=True)
class Dump:
    """One undecoded SingleOptimizerDump: its number in the oneof, and its bytes."""

    number: int
    body: bytes

    @property
    def kind(self) -> str:
        """The optimizer's name, or its number if the optimizer is unknown."""
        return _BY_NUMBER[self.number].kind if self.number in _BY_NUMBER else f"no. {self.number}"


def form_of(optimizer: Optimizer | None) -> DumpForm | None:
    """Returns how the states of `optimizer` are saved, or None if Monolith has no form for them.

    >>> from hedgerow.tables.monolith_rules import MonolithFtrl
    >>> form_of(MonolithFtrl()).floats
    {'zero': 1, 'norm': 2}
    """
    return None if optimizer is None else _BY_KIND.get(optimizer.kind)


def decode_dumps(data: bytes) -> tuple[Dump, ...]:
    """Returns the dumps of an OptimizerDump, in the order of their segments."""
    found: list[Dump] = []
    reader = ProtobufReader(data)
    for number, wire_type in reader.fields():
        if number != _DUMP:
            reader.skip(number, wire_type)
            continue
        reader.expect(number, wire_type, BYTES)
        found.append(_single(reader.bytes()))
    return tuple(found)


def _single(data: bytes) -> Dump:
    """Returns the dump in a message.

    The last known member wins, as in protobuf; number 0 if none is set.
    """
    dump = Dump(0, b"")
    reader = ProtobufReader(data)
    for number, wire_type in reader.fields():
        if wire_type == BYTES and (number in _BY_NUMBER or dump.number == 0):
            dump = Dump(number, reader.bytes())
        else:
            reader.skip(number, wire_type)
    return dump


def decode_states(form: DumpForm, body: bytes) -> tuple[dict[str, Floats], dict[str, int]]:
    """Returns float states and integer states by name.

    Absent states are left out, and unknown fields are skipped.

    >>> from hedgerow.core.protobuf import floats_field
    >>> floats, _ = decode_states(_BY_KIND["ftrl"], floats_field(2, np.ones(2, np.float32)))
    >>> floats["norm"].tolist()
    [1.0, 1.0]
    """
    names = {number: name for name, number in form.floats.items()}
    integers = {number: name for name, number in form.integers.items()}
    parts: dict[str, list[Floats]] = {}
    whole: dict[str, int] = {}
    reader = ProtobufReader(body)
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


def encode_dump(form: DumpForm, floats: Mapping[str, Floats], integers: Mapping[str, int]) -> bytes:
    """Returns one field of an OptimizerDump: the dump of one segment of one row."""
    fields = [floats_field(number, floats[name]) for name, number in form.floats.items()]
    fields += [varint_field(number, integers[name]) for name, number in form.integers.items()]
    return bytes_field(_DUMP, bytes_field(form.number, b"".join(fields)))


_ID, _VALUES, _OPTIMIZER, _TIME = 1, 2, 3, 4
NO_VALUES = np.empty(0, np.float32)


@dataclass(frozen=True, slots=True)
class EntryDump:
    """A row as stored in a file. An absent time or id is 0, as in protobuf."""

    id: int
    values: Floats
    dumps: tuple[Dump, ...]
    ts: int


def decode_entry(payload: bytes) -> EntryDump:
    """Decodes one message. Unknown fields are skipped; floats may be packed or unpacked.

    >>> decode_entry(encode_entry(7, np.ones(2, np.float32), b"", 5)).ts
    5
    """
    key, ts = 0, 0
    values: list[Floats] = []
    optimizer: list[bytes] = []
    reader = ProtobufReader(payload)
    for number, wire_type in reader.fields():
        if number == _VALUES:
            values.append(reader.floats(number, wire_type))
        elif number == _ID:
            reader.expect(number, wire_type, FIXED64)
            key = reader.sfixed64()
        elif number == _TIME:
            reader.expect(number, wire_type, VARINT)
            ts = reader.int64()
        elif number == _OPTIMIZER:
            reader.expect(number, wire_type, BYTES)
            optimizer.append(reader.bytes())  # protobuf merges repeated messages
        else:
            reader.skip(number, wire_type)
    row = values[0] if len(values) == 1 else np.concatenate([NO_VALUES, *values])
    return EntryDump(key, row, decode_dumps(b"".join(optimizer)), ts)


def encode_entry(key: int, values: Floats, optimizer: bytes, ts: int) -> bytes:
    """Encodes one message. `optimizer` holds the fields of its OptimizerDump.

    >>> encode_entry(1, np.zeros(1, np.float32), b"", 2).hex()
    '09010000000000000015000000001a002002'
    """
    return b"".join(
        (
            sfixed64_field(_ID, key),
            floats_field(_VALUES, values),
            bytes_field(_OPTIMIZER, optimizer),
            varint_field(_TIME, ts),
        )
    )


_ID_BYTES = 8
_MAX_TIME_BYTES = 9  # of a number below 2**63


@dataclass(frozen=True, slots=True)
class Decoded:
    """Rows in the regular form: their positions among the given ones, and their numbers."""

    at: NDArray[np.int64]
    ids: NDArray[np.int64]
    floats: Floats  # values, then every float state in file order
    ts: NDArray[np.int64]


class RowShape:
    """The regular form of a table's rows: fields in the order of their numbers, unpacked floats.

    Rows of one table then differ only in the bytes of their numbers. Tags and lengths are at the
    same positions. Other rows are decoded one by one.
    """

    def __init__(self, dim: int, dumps: Sequence[tuple[DumpForm, Mapping[str, int]]]) -> None:
        """`dumps` holds the form of each dump and the number of values of each of its states."""
        # Encode with all bits of all numbers clear, then set. The bytes that differ belong to
        # numbers.
        clear, full = (_encoded(dim, dumps, bits) for bits in (0, 2**32 - 1))
        self._prefix = np.frombuffer(clear[:-1], np.uint8)  # without the byte of the time
        differs = self._prefix != np.frombuffer(full[:-1], np.uint8)
        self._numbers = np.flatnonzero(differs)
        self._fixed = np.flatnonzero(~differs)

    def decode(self, payloads: Sequence[bytes]) -> Decoded:
        """Decodes the rows of `payloads` that have this form."""
        length = len(self._prefix)
        by_time: dict[int, list[int]] = {}
        for i, payload in enumerate(payloads):
            by_time.setdefault(len(payload) - length, []).append(i)
        parts = [
            self._same_length([payloads[i] for i in group], np.array(group), time_bytes)
            for time_bytes, group in by_time.items()
            if 1 <= time_bytes <= _MAX_TIME_BYTES
        ]
        width = (len(self._numbers) - _ID_BYTES) // 4
        none = np.empty(0, np.int64)
        parts.append(Decoded(none, none, np.empty((0, width), np.float32), none))
        return Decoded(
            np.concatenate([part.at for part in parts]),
            np.concatenate([part.ids for part in parts]),
            np.concatenate([part.floats for part in parts]),
            np.concatenate([part.ts for part in parts]),
        )

    def _same_length(
        self, payloads: Sequence[bytes], at: NDArray[np.int64], time_bytes: int
    ) -> Decoded:
        length = len(self._prefix)
        matrix = np.frombuffer(b"".join(payloads), np.uint8).reshape(len(payloads), -1)
        times = matrix[:, length:]
        more = np.arange(time_bytes) < time_bytes - 1  # a varint's last byte has no high bit
        fits = ((times >= 0x80) == more).all(axis=1)
        fits &= (matrix[:, self._fixed] == self._prefix[self._fixed]).all(axis=1)
        numbers = np.ascontiguousarray(matrix[fits][:, self._numbers])
        shifts = 7 * np.arange(time_bytes, dtype=np.int64)
        ts = ((times[fits] & 0x7F).astype(np.int64) << shifts).sum(axis=1)
        return Decoded(
            at[fits],
            np.ascontiguousarray(numbers[:, :_ID_BYTES]).view("<i8")[:, 0],
            np.ascontiguousarray(numbers[:, _ID_BYTES:]).view("<f4"),
            ts,
        )


def _encoded(dim: int, dumps: Sequence[tuple[DumpForm, Mapping[str, int]]], bits: int) -> bytes:
    def floats(n: int) -> Floats:
        return np.full(n, bits, np.uint32).view(np.float32)

    optimizer = b"".join(
        encode_dump(form, {name: floats(sizes[name]) for name in form.floats}, {})
        for form, sizes in dumps
    )
    return encode_entry(-1 if bits else 0, floats(dim), optimizer, 0)
