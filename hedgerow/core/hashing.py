"""Stable hashes of ids, strings and tuples, and ids with a slot in their upper bits."""

from __future__ import annotations

import functools
from typing import TypeVar

from torch import Tensor

from .checks import count
from .errors import DtypeError, InputError
from .shapes import Int64

_MASK = 2**64 - 1
MIX_1 = 0xFF51AFD7ED558CCD
MIX_2 = 0xC4CEB9FE1A85EC53
_P1 = 0x9E3779B185EBCA87
_P2 = 0xC2B2AE3D27D4EB4F
_P3 = 0x165667B19E3779F9
_P4 = 0x85EBCA77C2B2AE63
_P5 = 0x27D4EB2F165667C5


def signed64(value: int) -> int:
    """Returns the low 64 bits of `value` as a signed number.

    >>> signed64(2**64 - 1)
    -1
    """
    value &= _MASK
    return value - 2**64 if value >= 2**63 else value


def mix64(keys: Int64[Tensor, "n"]) -> Int64[Tensor, "n"]:
    """Returns a well mixed 64-bit hash of each key. Hash routing picks a key's owner with it.

    >>> import torch
    >>> [hex(h & (2**64 - 1)) for h in mix64(torch.tensor([0, 1, -1])).tolist()]
    ['0x0', '0xb456bcfc34c2cb2c', '0x64b5720b4b825f21']
    """
    keys = _xor_high(keys) * signed64(MIX_1)
    keys = _xor_high(keys) * signed64(MIX_2)
    return _xor_high(keys)


def _xor_high(keys: Tensor) -> Tensor:
    return keys ^ ((keys >> 33) & (2**31 - 1))  # the mask makes the shift a logical one


def id64(value: str | bytes | int | tuple[str | bytes | int, ...], field: str = "") -> int:
    """Returns a stable 64-bit id of a string, number or tuple. Each `field` has different ids.

    The id is the same on every machine and in every release, so it can be stored.

    >>> id64("Zürich", field="city")
    795450140219139997
    >>> id64(("a", "bc"), field="pair") == id64(("ab", "c"), field="pair")
    False
    """
    if not isinstance(field, str):
        raise DtypeError(f"field is {field!r}; it must be a str.")
    return signed64(xxh64(_bytes_of(value), field_seed(field)))


@functools.lru_cache(maxsize=4096)
def field_seed(field: str) -> int:
    """Returns the hash seed of the ids of `field`."""
    return xxh64(field.encode(), 0)


def _bytes_of(value: object) -> bytes:
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"{value!r} is not valid Unicode ({error}); pass bytes.") from error
    if isinstance(value, bytes):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        if not -(2**63) <= value < 2**64:
            raise InputError(f"{value} does not fit 64 bits; pass it as a str.")
        return (value & _MASK).to_bytes(8, "little")
    if isinstance(value, tuple):
        parts = [_bytes_of(part) for part in value]
        return b"".join(len(part).to_bytes(4, "little") + part for part in parts)
    raise DtypeError(
        f"cannot make an id of {value!r}, a {type(value).__name__}; "
        f"pass a str, bytes, int or a tuple of them."
    )


def _rotate(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (64 - bits))) & _MASK


def _round(lane: int, word: int) -> int:
    return _rotate((lane + word * _P2) & _MASK, 31) * _P1 & _MASK


def xxh64(data: bytes, seed: int) -> int:
    """Returns the unsigned XXH64 hash of `data`.

    >>> hex(xxh64(b"", 0))
    '0xef46db3751d8e999'
    """
    length = len(data)
    at = 0
    result = (seed + _P5) & _MASK
    if length >= 32:
        lanes = [(seed + _P1 + _P2) & _MASK, (seed + _P2) & _MASK, seed, (seed - _P1) & _MASK]
        while at + 32 <= length:
            for i in range(4):
                word = int.from_bytes(data[at + 8 * i : at + 8 * i + 8], "little")
                lanes[i] = _round(lanes[i], word)
            at += 32
        result = sum(_rotate(v, b) for v, b in zip(lanes, (1, 7, 12, 18), strict=True)) & _MASK
        for lane in lanes:
            result = ((result ^ _round(0, lane)) * _P1 + _P4) & _MASK
    result = (result + length) & _MASK
    for at8 in range(at, length - 7, 8):
        word = int.from_bytes(data[at8 : at8 + 8], "little")
        result = (_rotate(result ^ _round(0, word), 27) * _P1 + _P4) & _MASK
    at += (length - at) // 8 * 8
    if at + 4 <= length:
        word = int.from_bytes(data[at : at + 4], "little")
        result = (_rotate(result ^ (word * _P1 & _MASK), 23) * _P2 + _P3) & _MASK
        at += 4
    for byte in data[at:]:
        result = _rotate(result ^ (byte * _P5 & _MASK), 11) * _P1 & _MASK
    result = (result ^ (result >> 33)) * _P2 & _MASK
    result = (result ^ (result >> 29)) * _P3 & _MASK
    return result ^ (result >> 32)


Ids = TypeVar("Ids", int, Tensor)
_SLOT_BITS = {1: 10, 2: 15}
_SIGNATURE_BITS = {1: 54, 2: 48}


def _check_version(version: int) -> None:
    if version not in _SLOT_BITS:
        raise InputError(f"fid version is {version!r}; it must be 1 or 2.")


def make_fid(version: int, slot: int, signature: int) -> int:
    """Returns the id of `signature` in `slot`.

    The signature is cut to its low 54 bits (version 1) or 48 bits (version 2).

    >>> make_fid(2, 1, 100)
    281474976710756
    """
    _check_version(version)
    slots = 1 << _SLOT_BITS[version]
    if count("slot", slot) >= slots:
        raise InputError(f"slot is {slot}; a v{version} id has slots 0..{slots - 1}.")
    bits = _SIGNATURE_BITS[version]
    return signed64((slot << bits) | (signature & ((1 << bits) - 1)))


def slot_of(fids: Ids, version: int = 2) -> Ids:
    """Returns the slot of each id. Per-slot settings always read it with version 2.

    >>> slot_of(make_fid(2, 7, 5)), slot_of(make_fid(1, 1023, 5), version=1)
    (7, 1023)
    """
    _check_version(version)
    bits = _SIGNATURE_BITS[version]
    return (fids >> bits) & ((1 << _SLOT_BITS[version]) - 1)


def signature_of(fids: Ids, version: int = 2) -> Ids:
    """Returns each id without its slot.

    >>> signature_of(make_fid(1, 3, 100), version=1)
    100
    """
    _check_version(version)
    return fids & ((1 << _SIGNATURE_BITS[version]) - 1)


def fid_v1_to_v2(fids: Ids) -> Ids:
    """Returns the version 2 id for each version 1 id.

    The slot is kept. The top six bits of the signature are lost.

    >>> fid_v1_to_v2(make_fid(1, 1, 100)) == make_fid(2, 1, 100)
    True
    """
    return (slot_of(fids, 1) << _SIGNATURE_BITS[2]) | signature_of(fids, 2)
