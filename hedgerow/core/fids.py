"""Feature ids with a slot in the upper bits: layouts v1 (10 + 54 bits) and v2 (15 + 48 bits)."""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor

from .checks import count
from .errors import InputError
from .hashing import signed64

Ids = TypeVar("Ids", int, Tensor)
_SLOT_BITS = {1: 10, 2: 15}
_SIGNATURE_BITS = {1: 54, 2: 48}


def _check_version(version: int) -> None:
    if version not in _SLOT_BITS:
        raise InputError(f"fid version is {version!r}; it must be 1 or 2.")


def make_fid(version: int, slot: int, signature: int) -> int:
    """The id of `signature` in `slot`; the signature is cut to its low 54 (v1) or 48 (v2) bits.

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
    """The slot of each id. Settings per slot always read it with version 2.

    >>> slot_of(make_fid(2, 7, 5)), slot_of(make_fid(1, 1023, 5), version=1)
    (7, 1023)
    """
    _check_version(version)
    bits = _SIGNATURE_BITS[version]
    return (fids >> bits) & ((1 << _SLOT_BITS[version]) - 1)


def signature_of(fids: Ids, version: int = 2) -> Ids:
    """The id without its slot.

    >>> signature_of(make_fid(1, 3, 100), version=1)
    100
    """
    _check_version(version)
    return fids & ((1 << _SIGNATURE_BITS[version]) - 1)


def fid_v1_to_v2(fids: Ids) -> Ids:
    """The v2 id with the slot of a v1 id; the top six bits of its signature are lost.

    >>> fid_v1_to_v2(make_fid(1, 1, 100)) == make_fid(2, 1, 100)
    True
    """
    return (slot_of(fids, 1) << _SIGNATURE_BITS[2]) | signature_of(fids, 2)
