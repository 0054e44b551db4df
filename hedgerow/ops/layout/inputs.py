"""The arguments of a layout op, checked and in one form: requests, and lists of vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from ... import native
from ...core.errors import DtypeError, InputError
from ..arguments import FLOATS, WHOLE, together, typed
from .plan import Plan, plan_of


@dataclass(frozen=True)
class Request:
    """Where one request lies in the index tensors, and its rows in the outputs."""

    nfl: int
    offsets: int
    entries: int
    ids: int
    id_count: int
    row: int
    rows: int


@dataclass(frozen=True)
class Indices:
    """The index tensors of one call, and how its requests and lists lie."""

    plan: Plan
    fid_offset: Tensor
    feature_offset: Tensor
    nfl_offset: Tensor
    requests: list[Request]
    lists: int
    lengths: list[int]  # values of each list of each request
    places: list[tuple[int, int]]  # of each: the tensor it is in, and its first value there

    @property
    def rows(self) -> int:
        """Rows of every output."""
        return sum(request.rows for request in self.requests)

    def addresses(self, tensors: Sequence[Tensor]) -> list[int]:
        """Where each list of each request begins in `tensors`."""
        starts = [tensor.data_ptr() for tensor in tensors]
        size = tensors[0].element_size() if tensors else 0
        return [starts[number] + size * first for number, first in self.places]

    def core(self) -> native.LayoutBatch:
        """As the core takes it; the tensors must be kept alive."""
        return native.LayoutBatch(
            self.lists,
            [value for request in self.requests for value in vars(request).values()],
            self.lengths,
            self.nfl_offset.data_ptr(),
            self.feature_offset.data_ptr(),
            self.feature_offset.dtype == torch.int64,
            self.fid_offset.data_ptr(),
        )

    def check(self) -> native.LayoutBatch:
        """Every index leads somewhere, or ValueError; waits for a device. As `core`, on the CPU."""
        host = self
        if self.fid_offset.device.type != "cpu":
            index = (self.fid_offset.cpu(), self.feature_offset.cpu(), self.nfl_offset.cpu())
            host = Indices(self.plan, *index, self.requests, self.lists, self.lengths, self.places)
        core = host.core()
        fault = core.check(host.plan.core)
        if fault[0]:
            raise InputError(host.describe(*fault))
        return core

    def describe(self, kind: int, request: int, feature: int, at: int, value: int) -> str:
        """A fault the core found, in words."""
        name = self.plan.config.names[feature]
        which = f" of request {request}" if len(self.requests) > 1 else ""
        owner, one = f"feature {name!r}{which}", self.requests[request]
        if kind == 1:
            return f"nfl_offset[{at}] says {value}, less than the word before; {owner} starts there"
        if kind == 2:
            return (
                f"nfl_offset[{at}] says {value}; feature_offset has {one.entries} entries{which}: "
                f"{owner} must end there"
            )
        if kind == 3:
            return (
                f"{owner} has {value} entries; it must have {one.rows}, one a row of the batch, or "
                f"1 if shared, or none"
            )
        if kind == 4:
            return (
                f"feature_offset[{at}] is {value}, for {owner}; offsets never fall and lie in "
                f"[0, {one.id_count}]"
            )
        if kind == 5:
            return (
                f"fid_offset[{at}] names list {value}, for {owner}; there are {self.lists} lists, "
                f"one a table and shard"
            )
        ends = [t.start + t.width for t in self.plan.tasks if t.feature == feature]
        number = int(self.fid_offset[at]) >> 32
        length = self.lengths[request * self.lists + number]
        return (
            f"fid_offset[{at}] is value {value} of list {number}, for {owner}; its slices read up "
            f"to value {value + max(ends, default=0)}, the list has {length}"
        )


def vectors(embeddings: Sequence[Tensor], index: Tensor) -> list[Tensor]:
    """The lists of vectors, contiguous, if all are flat floats of one type beside `index`."""
    found = [typed(f"embeddings[{i}]", one, FLOATS, (None,)) for i, one in enumerate(embeddings)]
    for i, one in enumerate(found):
        if one.dtype != found[0].dtype:
            raise DtypeError(
                f"embeddings[{i}] has dtype {one.dtype}, embeddings[0] {found[0].dtype}; all must "
                f"have one."
            )
        together("fid_offset", index, f"embeddings[{i}]", one)
    return found


def indices(
    sizes: Sequence[int],
    fid_offset: Tensor,
    feature_offset: Tensor,
    nfl_offset: Tensor,
    batch_sizes: Sequence[int],
    request_sizes: Tensor | None,
    lengths: Tensor | None,
    config: str,
    num_shards: int,
) -> Indices:
    """Checks shapes and sizes; `sizes` are the values of each list of vectors.

    Without `request_sizes` it is one request: of lists, or, with `lengths`, of one flat tensor cut
    by them, shards first. With them, `lengths` has the values of each request's part of each list.
    """
    plan = plan_of(config)
    if num_shards < 1:
        raise InputError(f"num_shards is {num_shards}; there is at least one shard.")
    tables = len(plan.config.tables)
    lists = tables * num_shards
    fid_offset = typed("fid_offset", fid_offset, (torch.int64,), (None,))
    feature_offset = typed("feature_offset", feature_offset, WHOLE, (None,))
    nfl_offset = typed("nfl_offset", nfl_offset, WHOLE, (None,)).to(torch.int64)
    together("fid_offset", fid_offset, "feature_offset", feature_offset)
    together("fid_offset", fid_offset, "nfl_offset", nfl_offset)
    found = (fid_offset, feature_offset, nfl_offset)
    totals = [nfl_offset.shape[0], feature_offset.shape[0], fid_offset.shape[0]]
    if request_sizes is None:
        _count("batch_size", batch_sizes, 1)
        requests = _requests([[total] for total in totals], totals, batch_sizes, plan)
        cut = _cut_flat(sizes, lengths, tables, num_shards) if lengths is not None else None
        if cut is None:
            _count("embeddings", sizes, lists)
            cut = list(sizes), [(i, 0) for i in range(lists)]
    else:
        _count("batch_size", batch_sizes, request_sizes.shape[1])
        requests = _requests(request_sizes.tolist(), totals, batch_sizes, plan)
        _count("embeddings", sizes, lists)
        cut = _cut_lists(sizes, lengths, len(requests))
    result = Indices(plan, *found, requests, lists, *cut)
    plan.check_rows(result.rows)
    return result


def _count(name: str, values: Sequence[int], wanted: int) -> None:
    if len(values) != wanted:
        raise InputError(f"{name} has {len(values)} entries; it must have {wanted}.")


def _adds_up(name: str, values: Sequence[int], total: int, to: str) -> None:
    if any(value < 0 for value in values):
        raise InputError(f"{name} holds {min(values)}; sizes are at least 0.")
    if sum(values) != total:
        raise InputError(f"{name} adds up to {sum(values)}; {to} has {total}: they must agree.")


def _requests(
    sizes: Sequence[Sequence[int]], totals: Sequence[int], batch_sizes: Sequence[int], plan: Plan
) -> list[Request]:
    words = len(plan.config.names) + 1
    nfl, offsets, ids = sizes
    for name, one, total in zip(("nfl", "feature", "fid"), sizes, totals, strict=True):
        _adds_up(f"{name}_size", one, total, f"{name}_offset")
    if any(size != words for size in nfl):
        raise InputError(
            f"nfl_offset has {' + '.join(map(str, nfl))} words; it must have {words} a request: "
            f"one a feature, and the end."
        )
    if any(size < 1 for size in offsets):
        raise InputError("feature_offset is empty; without entries it holds the end alone, [0].")
    if any(rows < 0 for rows in batch_sizes):
        raise InputError(f"batch_size is {min(batch_sizes)}; it must be at least 0.")
    starts = [list(accumulate(one, initial=0)) for one in (nfl, offsets, ids, batch_sizes)]
    return [
        Request(
            nfl=starts[0][r],
            offsets=starts[1][r],
            entries=offsets[r] - 1,
            ids=starts[2][r],
            id_count=ids[r],
            row=starts[3][r],
            rows=int(batch_sizes[r]),
        )
        for r in range(len(batch_sizes))
    ]


def _cut_flat(
    sizes: Sequence[int], lengths: Tensor, tables: int, shards: int
) -> tuple[list[int], list[tuple[int, int]]]:
    """Lists in a flat tensor, which has them shard by shard, by table and shard."""
    if len(sizes) != 1:
        raise InputError(f"{len(sizes)} embeddings with emb_lengths; they cut one flat tensor.")
    values = typed("emb_lengths", lengths, WHOLE, (tables * shards,)).tolist()
    _adds_up("emb_lengths", values, sizes[0], "the flat tensor")
    starts = list(accumulate(values, initial=0))
    order = [shard * tables + table for table in range(tables) for shard in range(shards)]
    return [values[i] for i in order], [(0, starts[i]) for i in order]


def _cut_lists(
    sizes: Sequence[int], lengths: Tensor | None, requests: int
) -> tuple[list[int], list[tuple[int, int]]]:
    """Each request's part of each list, request by request."""
    if lengths is None:
        raise InputError("emb_size is missing; requests need the values each has of each list.")
    lists = len(sizes)
    values = typed("emb_size", lengths.reshape(-1), WHOLE, (requests * lists,)).tolist()
    starts = []
    for i, size in enumerate(sizes):
        mine = values[i::lists]
        _adds_up(f"emb_size of list {i}", mine, size, f"embeddings[{i}]")
        starts.append([first for first, _ in pairwise(accumulate(mine, initial=0))])
    return values, [(i, starts[i][r]) for r in range(requests) for i in range(lists)]
