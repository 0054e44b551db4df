"""The layout op with Monolith's argument order, and a parser of its FeatureConfigs message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from ...core.errors import ConfigError, DtypeError, InputError
from ...core.protobuf import BYTES, VARINT, ProtobufReader, WireError
from .calls import (
    Counts,
    fused_embedding_to_layout_grad_versioned,
    fused_embedding_to_layout_versioned,
)
from .config import FeatureConfigs, LayoutFeature, OutConfig, Slice

_POOLINGS = {0: "SUM", 1: "MEAN", 3: "FIRSTN"}
_OUT_TYPES = {0: "CONCAT", 1: "STACK", 2: "ADDN", 3: "NONE"}


def read_feature_configs(message: bytes) -> FeatureConfigs:
    """Returns the configuration in a message. Unknown fields are skipped.

    >>> read_feature_configs(b"").names
    []
    """
    features: dict[str, LayoutFeature] = {}
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


def _fields(message: bytes) -> Iterator[tuple[int, int, ProtobufReader]]:
    reader = ProtobufReader(message)
    for number, wire_type in reader.fields():
        yield number, wire_type, reader


def _bytes(number: int, wire_type: int, reader: ProtobufReader) -> bytes:
    reader.expect(number, wire_type, BYTES)
    return reader.bytes()


def _number(number: int, wire_type: int, reader: ProtobufReader) -> int:
    reader.expect(number, wire_type, VARINT)
    return reader.int64()


def _numbers(number: int, wire_type: int, reader: ProtobufReader) -> list[int]:
    """Returns the numbers of a repeated field: one, or several packed into bytes."""
    if wire_type != BYTES:
        return [_number(number, wire_type, reader)]
    return ProtobufReader(reader.bytes()).int64s()


def _entry(message: bytes) -> tuple[str, bytes]:
    """Returns key and value of a map entry."""
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


def _feature(message: bytes) -> LayoutFeature:
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
    return LayoutFeature(table, _named("pooling_type", pooling, _POOLINGS), tuple(dims), length)


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
        else:  # among others, a field that only Monolith uses
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


_VARIANTS = ("example", "example_batch", "examplebatch", "instance")


def fused_embedding_to_layout(
    embeddings_list: Sequence[Tensor] | Tensor,
    fid_list_row_split: Sequence[Tensor] | None,
    fid_offset: Tensor,
    feature_offset: Tensor,
    nfl_offset: Tensor,
    batch_size: int | Counts,
    variant_type: str,
    feature_cfgs: FeatureConfigs | bytes,
    ps_num: int,
    fid_list_emb_row_lenth: Counts | None = None,
    nfl_size: Counts | None = None,
    feature_size: Counts | None = None,
    fid_size: Counts | None = None,
    emb_size: Counts | None = None,
    parallel_flag: int = 0,
    version: int = 3,
) -> list[Tensor]:
    """Returns the tensors of all layouts, sorted by name; see `hedgerow.monolith.layouts`.

    Versions differ in the form of the vectors: 1 rows of one width, 2 rows of one feature (needs
    `fid_list_row_split`), 3 flat lists, 4 one flat tensor (needs `fid_list_emb_row_lenth`), 5
    several requests (needs the four sizes). `variant_type` and `parallel_flag` have no effect.
    """
    given = (nfl_size, feature_size, fid_size, emb_size)
    sizes = tuple(one for one in given if one is not None)
    if version == 5 and len(sizes) not in (0, 4):
        raise InputError("version 5 needs nfl_size, feature_size, fid_size and emb_size together.")
    return fused_embedding_to_layout_versioned(
        embeddings_list,
        _config(feature_cfgs, variant_type),
        version=version,
        fid_offset=fid_offset,
        feature_offset=feature_offset,
        nfl_offset=nfl_offset,
        batch_size=batch_size,
        num_shards=ps_num,
        fid_list_row_splits=fid_list_row_split,
        emb_lengths=fid_list_emb_row_lenth,
        request_sizes=sizes if len(sizes) == 4 else None,
    )


def fused_embedding_to_layout_grad(
    nfl_offset: Tensor,
    feature_offset: Tensor,
    fid_offset: Tensor,
    batch_size: int | Counts,
    embeddings_list: Sequence[Tensor] | Tensor,
    fid_list_row_split: Sequence[Tensor] | None,
    layout_tensors_grad: Sequence[Tensor],
    variant_type: str,
    feature_cfgs: FeatureConfigs | bytes,
    ps_num: int,
    fid_list_emb_row_lenth: Counts | None = None,
    layout_tensors_grad_scale: float | Tensor | None = None,
    parallel_flag: int = 0,
    version: int = 3,
) -> list[Tensor]:
    """Returns the gradient of each of `embeddings_list` for one request, times the scale."""
    return fused_embedding_to_layout_grad_versioned(
        embeddings_list,
        _config(feature_cfgs, variant_type),
        version=version,
        fid_offset=fid_offset,
        feature_offset=feature_offset,
        nfl_offset=nfl_offset,
        batch_size=batch_size,
        num_shards=ps_num,
        layout_tensors_grad=layout_tensors_grad,
        layout_tensors_grad_scale=layout_tensors_grad_scale,
        fid_list_row_splits=fid_list_row_split,
        emb_lengths=fid_list_emb_row_lenth,
    )


def _config(feature_cfgs: FeatureConfigs | bytes, variant_type: str) -> FeatureConfigs:
    if variant_type not in _VARIANTS:
        raise InputError(
            f"variant_type is {variant_type!r}; it must be one of {', '.join(_VARIANTS)}."
        )
    if isinstance(feature_cfgs, bytes):
        return read_feature_configs(feature_cfgs)
    if not isinstance(feature_cfgs, FeatureConfigs):
        raise DtypeError(
            f"feature_cfgs is a {type(feature_cfgs).__name__}; pass a FeatureConfigs, or the bytes "
            f"of Monolith's message."
        )
    return feature_cfgs
