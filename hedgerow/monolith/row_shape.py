"""Many saved rows at once: those written in the usual form are decoded as one array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..core.protobuf import Floats
from .entry_dump import encode_entry
from .optimizer_dump import Form, encode_dump

_ID_BYTES = 8
_MAX_TIME_BYTES = 9  # of a number below 2**63


@dataclass(frozen=True, slots=True)
class Decoded:
    """Rows in the usual form: which of the given ones they are, and their numbers."""

    at: NDArray[np.int64]
    ids: NDArray[np.int64]
    floats: Floats  # values, then every float state in the order of the file
    ts: NDArray[np.int64]


class RowShape:
    """The usual form of a table's rows: fields in the order of their numbers, floats not packed.

    Rows of one table then differ in the bytes of their numbers alone; tags and lengths stand at the
    same places. What looks otherwise is left to the decoder of single messages.
    """

    def __init__(self, dim: int, dumps: Sequence[tuple[Form, Mapping[str, int]]]) -> None:
        """`dumps` holds the form of each dump and the number of values of each of its states."""
        # All bits of all numbers clear, then set: the bytes that differ are theirs.
        clear, full = (_encoded(dim, dumps, bits) for bits in (0, 2**32 - 1))
        self._prefix = np.frombuffer(clear[:-1], np.uint8)  # without the byte of the time
        differs = self._prefix != np.frombuffer(full[:-1], np.uint8)
        self._numbers = np.flatnonzero(differs)
        self._fixed = np.flatnonzero(~differs)

    def decode(self, payloads: Sequence[bytes]) -> Decoded:
        """The rows of `payloads` that have this form."""
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
        more = np.arange(time_bytes) < time_bytes - 1  # every byte of a number but its last says so
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


def _encoded(dim: int, dumps: Sequence[tuple[Form, Mapping[str, int]]], bits: int) -> bytes:
    def floats(n: int) -> Floats:
        return np.full(n, bits, np.uint32).view(np.float32)

    optimizer = b"".join(
        encode_dump(form, {name: floats(sizes[name]) for name in form.floats}, {})
        for form, sizes in dumps
    )
    return encode_entry(-1 if bits else 0, floats(dim), optimizer, 0)
