"""Builds pushes of rows for a replica, and tracks those in flight."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..core.shapes import Int64
from ..wire.messages import tf_serving
from ..wire.predict import fronts, request_bytes
from .link import ReplicaCall, ReplicaLink, TargetError
from .protocol import ASSIGN, REMOVE, PushMark
from .source import RowSource, TableShare

if TYPE_CHECKING:
    from ..wire.messages.tf_serving import PredictRequest


PART_BYTES = 1 << 20  # of one call; a replica answers its readers between two calls


@dataclass(frozen=True, slots=True)
class RowPush:
    """A push of rows, built just before it is sent."""

    signature: str
    rows: int
    request: bytes


def parts_of(
    ids: Mapping[str, Int64[Tensor, "n"]], dims: Mapping[str, int], part_bytes: int = PART_BYTES
) -> Iterator[dict[str, Int64[Tensor, "n"]]]:
    """Yields keys in parts that fit into one call. A part may have keys of several tables.

    >>> ids = {"a": torch.arange(3), "b": torch.arange(2)}
    >>> [{t: len(i) for t, i in part.items()} for part in parts_of(ids, {"a": 2, "b": 2}, 48)]
    [{'a': 3}, {'b': 2}]
    """
    part: dict[str, Tensor] = {}
    left = part_bytes
    for table, all_ids in ids.items():
        row_bytes = 8 + 4 * dims[table]
        at = 0
        while at < len(all_ids):
            fit = left // row_bytes
            if fit <= 0 and part:
                yield part
                part, left = {}, part_bytes
                continue
            share = all_ids[at : at + max(1, fit)]
            part[table] = share
            at += len(share)
            left -= len(share) * row_bytes
    if part:
        yield part


def pushes_of(
    source: RowSource,
    model: str,
    tables: Sequence[str],
    dims: Mapping[str, int],
    part: Mapping[str, Int64[Tensor, "n"]],
) -> Iterator[RowPush]:
    """Yields the pushes for these keys, with their current rows.

    Each push names all tables of the model, even those without keys, because the server requires
    it.
    """
    none = torch.empty(0, dtype=torch.int64)
    whole = source.message(_shares(model, {table: part.get(table, none) for table in tables}, dims))
    if whole is not None:
        yield RowPush(ASSIGN, sum(len(ids) for ids in part.values()), whole)
        return
    there: dict[str, tuple[Tensor, Tensor]] = {}
    gone: dict[str, Tensor] = {}
    for table, ids in part.items():
        read = source.read(table, ids)
        if bool(read.present.all()):
            there[table] = (ids, read.rows)
        else:
            there[table] = (ids[read.present], read.rows[read.present])
            gone[table] = ids[~read.present]
    rows = sum(len(ids) for ids, _ in there.values())
    if rows:
        given: dict[str, Tensor] = {}
        for table in tables:
            empty = torch.empty(0, dims[table], dtype=torch.float32)
            ids, values = there.get(table) or (none, empty)
            given[f"{table}_id"], given[f"{table}_value"] = ids, values
        yield RowPush(ASSIGN, rows, _request(model, ASSIGN, given))
    removed = sum(len(ids) for ids in gone.values())
    if removed:
        ids_only = {f"{table}_id": gone.get(table, none) for table in tables}
        yield RowPush(REMOVE, removed, _request(model, REMOVE, ids_only))


def _shares(model: str, ids: Mapping[str, Tensor], dims: Mapping[str, int]) -> list[TableShare]:
    """Returns the ids with the bytes that `_request` would write around them in an assign."""
    tables = tuple((table, len(one), dims[table]) for table, one in ids.items())
    found = iter(_fronts(model, tables))
    return [TableShare(table, one, next(found), next(found)) for table, one in ids.items()]


@lru_cache(maxsize=64)  # nearly all pushes of a model have the same size
def _fronts(model: str, tables: tuple[tuple[str, int, int], ...]) -> list[bytes]:
    kinds: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
    for table, n, dim in tables:
        kinds[f"{table}_id"] = (torch.int64, (n,))
        kinds[f"{table}_value"] = (torch.float32, (n, dim))
    return fronts(_head(model, ASSIGN), kinds)


def _head(model: str, signature: str) -> PredictRequest:
    request = tf_serving.PredictRequest()
    request.model_spec.name = model
    request.model_spec.signature_name = signature
    return request


def _request(model: str, signature: str, inputs: Mapping[str, Tensor]) -> bytes:
    return request_bytes(_head(model, signature), inputs)


_MOST_IN_FLIGHT = 2  # one is applied while the next arrives; more would arrive interleaved
Observe = Callable[[RowPush, str, float, str], None]
"""Called after each push with the push, the model, the seconds that it took, and its gRPC code."""


@dataclass(frozen=True, slots=True)
class _InFlight:
    push: RowPush
    call: ReplicaCall
    seq: int
    begun_s: float


class InFlightPushes:
    """The pushes of one session that are in flight, numbered from 1. Used by one thread.

    A push names the previous one if that is not answered yet, so that the replica applies them in
    order, whichever of its threads runs first.
    """

    def __init__(
        self,
        session: str,
        model: str,
        place: tuple[str, int],
        *,
        timeout_s: float,
        observe: Observe,
    ) -> None:
        self.session, self.seq = session, 0
        self._model, self._timeout_s, self._observe = model, timeout_s, observe
        self._publisher, self._shard = place
        self._flying: deque[_InFlight] = deque()

    def send(self, link: ReplicaLink, push: RowPush) -> None:
        """Starts a push. Waits first if too many are in flight."""
        while len(self._flying) >= _MOST_IN_FLIGHT:
            self._land()
        self.seq += 1
        after = self._flying[-1].seq if self._flying else 0
        mark = PushMark(self.session, self.seq, self._shard, self._publisher, after)
        call = link.begin_predict(push.request, self._timeout_s, mark)
        self._flying.append(_InFlight(push, call, self.seq, time.monotonic()))

    def land_all(self) -> None:
        """Waits for all answers and raises the first error."""
        while self._flying:
            self._land()

    def give_up(self) -> None:
        """Cancels all pushes. Everything sent later is newer than what may still arrive."""
        for one in self._flying:
            one.call.cancel()
        self._flying.clear()

    def _land(self) -> None:
        flying, code = self._flying.popleft(), "OK"
        try:
            flying.call.answer()
        except TargetError as error:
            code = error.code
            raise
        finally:
            self._observe(flying.push, self._model, time.monotonic() - flying.begun_s, code)
