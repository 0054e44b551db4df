"""The original's serialized FeatureConfigs message, read as ours."""

from __future__ import annotations

from collections.abc import Iterator

from ..core.errors import ConfigError
from ..core.protobuf import BYTES, VARINT, Reader, WireError
from ..ops.layout.config import Feature, FeatureConfigs, OutConfig, Slice

_POOLINGS = {0: "SUM", 1: "MEAN", 3: "FIRSTN"}
_OUT_TYPES = {0: "CONCAT", 1: "STACK", 2: "ADDN", 3: "NONE"}


def read_feature_configs(message: bytes) -> FeatureConfigs:
    """The configuration in a message; fields that nobody here knows are passed over.

    >>> read_feature_configs(b"").names
    []
    """
    features: dict[str, Feature] = {}
    outs: dict[str, OutConfig] = {}
    try:
        for number, wire_type, reader in _fields(message):
            if number not in (1, 2):
                reader.skip(number, wire_type)
                continue
            name, value = _entry(_bytes(number, wire_type, reader))
            if number == 1:
                features[name] = _feature(value)
            else:
                outs[name] = _out(value)
    except (WireError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"feature_cfgs holds no FeatureConfigs message ({error}); pass the bytes of one, or a "
            f"FeatureConfigs."
        ) from error
    return FeatureConfigs(features, outs)


def _fields(message: bytes) -> Iterator[tuple[int, int, Reader]]:
    reader = Reader(message)
    for number, wire_type in reader.fields():
        yield number, wire_type, reader


def _bytes(number: int, wire_type: int, reader: Reader) -> bytes:
    reader.expect(number, wire_type, BYTES)
    return reader.bytes()


def _number(number: int, wire_type: int, reader: Reader) -> int:
    reader.expect(number, wire_type, VARINT)
    return reader.int64()


def _numbers(number: int, wire_type: int, reader: Reader) -> list[int]:
    """Of a repeated field: one, or several packed into bytes."""
    if wire_type != BYTES:
        return [_number(number, wire_type, reader)]
    return Reader(reader.bytes()).int64s()


def _entry(message: bytes) -> tuple[str, bytes]:
    """Key and value of an entry of a map."""
    name, value = "", b""
    for number, wire_type, reader in _fields(message):
        if number == 1:
            name = _bytes(number, wire_type, reader).decode()
        elif number == 2:
            value = _bytes(number, wire_type, reader)
        else:
            reader.skip(number, wire_type)
    return name, value


def _named(what: str, number: int, names: dict[int, str]) -> str:
    if number not in names:
        known = ", ".join(f"{name} {i}" for i, name in names.items())
        raise ConfigError(f"{what} is {number}; known: {known}.")
    return names[number]


def _feature(message: bytes) -> Feature:
    table, pooling, length = "", 0, 0
    dims: list[int] = []
    for number, wire_type, reader in _fields(message):
        if number == 1:
            table = _bytes(number, wire_type, reader).decode()
        elif number == 2:
            pooling = _number(number, wire_type, reader)
        elif number == 3:
            dims += _numbers(number, wire_type, reader)
        elif number == 4:
            length = _number(number, wire_type, reader)
        else:
            reader.skip(number, wire_type)
    return Feature(table, _named("pooling_type", pooling, _POOLINGS), tuple(dims), length)


def _out(message: bytes) -> OutConfig:
    slices: list[Slice] = []
    shape: list[tuple[int, ...]] = []
    out_type = 0
    for number, wire_type, reader in _fields(message):
        if number == 1:
            slices.append(_slice(_bytes(number, wire_type, reader)))
        elif number == 2:
            out_type = _number(number, wire_type, reader)
        elif number == 3:
            shape.append(_shape(_bytes(number, wire_type, reader)))
        else:
            reader.skip(number, wire_type)
    return OutConfig(_named("out_type", out_type, _OUT_TYPES), tuple(slices), tuple(shape))


def _slice(message: bytes) -> Slice:
    name, borders = "", {2: 0, 3: 0}
    for number, wire_type, reader in _fields(message):
        if number == 1:
            name = _bytes(number, wire_type, reader).decode()
        elif number in borders:
            borders[number] = _number(number, wire_type, reader)
        else:  # what the original fills in for itself, among others
            reader.skip(number, wire_type)
    return Slice(name, borders[2], borders[3])


def _shape(message: bytes) -> tuple[int, ...]:
    dims: list[int] = []
    for number, wire_type, reader in _fields(message):
        if number == 1:
            dims += _numbers(number, wire_type, reader)
        else:
            reader.skip(number, wire_type)
    return tuple(dims)
