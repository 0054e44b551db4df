"""Cuts a PushRequest that is too large for one call into parts, each with rows of every table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ..core import checks
from ..core.errors import InputError
from . import packed
from .messages import parameter_sync
from .push import arrays_of

if TYPE_CHECKING:
    from .messages.parameter_sync import PushRequest

    Delta = PushRequest.DeltaEmbeddingHashTable

LIMIT_BYTES = 4 << 20
Rule = Literal["balanced", "reference"]


def split(
    request: PushRequest, limit_bytes: int = LIMIT_BYTES, rule: Rule = "balanced"
) -> list[PushRequest]:
    """The request itself where it is small enough, or else as many parts as it holds limits.

    "balanced" gives every part the same number of rows, give or take one; "reference" is the
    original's rule, by which the last part takes what does not divide. A part may be a little
    larger than the limit: names are repeated, and fids differ in length.

    >>> from hedgerow.wire.messages import parameter_sync
    >>> request = parameter_sync.PushRequest(model_name="m")
    >>> _ = request.delta_hash_tables.add(fids=range(5), embeddings=[0.0] * 5)
    >>> [len(part.delta_hash_tables[0].fids) for part in split(request, 15)]
    [1, 2, 2]
    >>> [len(part.delta_hash_tables[0].fids) for part in split(request, 15, "reference")]
    [1, 1, 3]
    """
    checks.count("limit_bytes", limit_bytes, least=1)
    if rule not in ("balanced", "reference"):
        raise InputError(f"rule is {rule!r}; it must be 'balanced' or 'reference'.")
    count = -(-request.ByteSize() // limit_bytes)
    if count <= 1:
        return [request]
    parts = [_empty_part(request) for _ in range(count)]
    for delta in request.delta_hash_tables:
        _deal(delta, [part.delta_hash_tables.add() for part in parts], rule)
    for delta in request.delta_multi_hash_tables:
        _deal(delta, [part.delta_multi_hash_tables.add() for part in parts], rule)
    return parts


def _empty_part(request: PushRequest) -> PushRequest:
    part = parameter_sync.PushRequest(timeout_in_ms=request.timeout_in_ms)
    for name in ("model_name", "signature_name"):
        if request.HasField(name):
            setattr(part, name, getattr(request, name))
    return part


def _deal(delta: Delta, shares: list[Delta], rule: Rule) -> None:
    """Gives each share its rows of a table."""
    fids, values = arrays_of(delta)
    width = values.size // len(fids) if len(fids) else 0
    if values.size != width * len(fids):
        raise InputError(
            f"table {delta.unique_id!r} has {values.size} values for {len(fids)} rows; "
            "it must have the same number for each row."
        )
    for place, share in enumerate(shares):
        begin, end = _rows(len(fids), place, len(shares), rule)
        if delta.HasField("unique_id"):
            share.unique_id = delta.unique_id
        if delta.HasField("dim_size"):
            share.dim_size = delta.dim_size
        packed.append(share, "fids", fids[begin:end])
        packed.append(share, "embeddings", values[begin * width : end * width])


def _rows(rows: int, place: int, parts: int, rule: Rule) -> tuple[int, int]:
    """The rows of one part, from and to."""
    if rule == "balanced":
        return rows * place // parts, rows * (place + 1) // parts
    each = rows // parts
    return each * place, rows if place == parts - 1 else each * (place + 1)
