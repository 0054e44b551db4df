"""The arguments of a layout op, checked and normalized: tasks, offsets and lists of vectors."""

from __future__ import annotations

import atexit
import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from ... import native
from ...core.errors import DtypeError, InputError
from ...core.shapes import Int64
from ...ops import arguments
from ...ops.arguments import FLOATS, WHOLE, together, typed
from ...ops.library import register
from .config import FeatureConfigs, OutConfig, by_name, text_of

_KEPT = 256  # configurations; a program has few
POOLING_NUMBERS = {"SUM": 0, "MEAN": 1, "FIRSTN": 3}


@dataclass(frozen=True)
class Task:
    """Source and destination of one slice. Strides and columns count values."""

    feature: int
    output: int
    pooling: int
    length: int  # positions of FIRSTN, else 1
    start: int
    width: int
    row_stride: int
    column: int
    position_stride: int
    adds: bool  # an earlier task has set the values

    def numbers(self) -> list[int]:
        """Returns the task as numbers for the core."""
        return [int(value) for value in vars(self).values()]


@dataclass(frozen=True)
class LayoutTasks:
    """The tasks ordered by feature, and the shapes of the outputs without the batch."""

    config: FeatureConfigs
    tasks: list[Task]
    sizes: list[tuple[int, ...]]
    batches: list[tuple[str, int]]  # layouts that fix the number of rows of a batch

    @functools.cached_property
    def core(self) -> native.LayoutPlan:
        """The tasks in the form of the core. Other devices do not need the core."""
        numbers = [value for task in self.tasks for value in task.numbers()]
        return native.LayoutPlan(len(self.config.names), numbers)

    @functools.cached_property
    def kept(self) -> dict[torch.device, Any]:
        """Objects that the kernels keep for each device."""
        return {}

    def shapes(self, rows: int) -> list[tuple[int, ...]]:
        """Returns the shape of each output."""
        return [(rows, *size) for size in self.sizes]

    def check_rows(self, rows: int) -> None:
        """Raises unless the number of rows fits the layouts that fix it."""
        for name, wanted in self.batches:
            if rows != wanted:
                raise InputError(
                    f"batch_size is {rows}; the shape of layout {name!r} says {wanted}: pass that, "
                    f"or write -1 there."
                )


@functools.lru_cache(maxsize=_KEPT)
def plan_of(text: str) -> LayoutTasks:
    """Returns the tasks of a configuration's string. Computed once."""
    config = FeatureConfigs.from_json(json.loads(text))
    numbers = {name: number for number, name in enumerate(config.names)}
    tasks: list[Task] = []
    sizes: list[tuple[int, ...]] = []
    batches: list[tuple[str, int]] = []
    for name in by_name(config.outs):
        out = config.outs[name]
        tasks += _tasks(out, config, numbers, len(sizes))
        sizes += out.sizes(config.features)
        batches += [(name, dims[0]) for dims in out.shape if dims[0] != -1]
    tasks.sort(key=lambda task: task.feature)  # stable: slices stay in layout order
    return LayoutTasks(config, _first_sets(tasks), sizes, batches)


# The registered ops keep this module alive until exit. The core's objects must be freed before.
atexit.register(plan_of.cache_clear)


def _tasks(
    out: OutConfig, config: FeatureConfigs, numbers: dict[str, int], first_output: int
) -> list[Task]:
    """Returns the tasks of one layout, in the order of its slices."""
    widths = [one.width for one in out.slices]
    before = list(accumulate(widths, initial=0))
    tasks = []
    for place, one in enumerate(out.slices):
        feature = config.features[one.feature]
        length = feature.length or 1
        output, column, across = first_output, 0, one.width
        row = length * one.width
        if out.out_type == "NONE":
            output += place
        elif out.out_type == "CONCAT":
            column, across, row = before[place], before[-1], length * before[-1]
        elif out.out_type == "STACK":
            column, row = place * row, len(widths) * row
        tasks.append(
            Task(
                feature=numbers[one.feature],
                output=output,
                pooling=POOLING_NUMBERS[feature.pooling],
                length=length,
                start=one.start,
                width=one.width,
                row_stride=row,
                column=column,
                position_stride=across,
                adds=out.out_type == "ADDN",
            )
        )
    return tasks


def _first_sets(tasks: list[Task]) -> list[Task]:
    """Makes the first task of each added output set its values, so that nothing must be cleared."""
    begun: set[int] = set()
    found = []
    for task in tasks:
        found.append(Task(**{**vars(task), "adds": task.adds and task.output in begun}))
        begun.add(task.output)
    return found


@dataclass(frozen=True)
class LayoutRequest:
    """The position of one request in the index tensors, and its rows in the outputs."""

    nfl: int
    offsets: int
    entries: int
    ids: int
    id_count: int
    row: int
    rows: int


@dataclass(frozen=True)
class Indices:
    """The index tensors of one call, and the positions of its requests and lists."""

    plan: LayoutTasks
    fid_offset: Tensor
    feature_offset: Tensor
    nfl_offset: Tensor
    requests: list[LayoutRequest]
    lists: int
    lengths: list[int]  # values of each list of each request
    places: list[tuple[int, int]]  # per list: its tensor, and its first value there

    @property
    def rows(self) -> int:
        """Rows of every output."""
        return sum(request.rows for request in self.requests)

    def addresses(self, tensors: Sequence[Tensor]) -> list[int]:
        """Returns the address of each list of each request in `tensors`."""
        starts = [tensor.data_ptr() for tensor in tensors]
        size = tensors[0].element_size() if tensors else 0
        return [starts[number] + size * first for number, first in self.places]

    def core(self) -> native.LayoutBatch:
        """Returns the indices in the form of the core. The tensors must be kept alive."""
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
        """Raises an error for an invalid index.

        Returns the same as `core`, on the CPU. Blocks on a device.
        """
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
        """Returns the text of a fault that the core found."""
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
                f"{owner} has {value} entries; it must have {one.rows}, one per row of the batch, "
                f"or 1 if shared, or none"
            )
        if kind == 4:
            return (
                f"feature_offset[{at}] is {value}, for {owner}; offsets never fall and lie in "
                f"[0, {one.id_count}]"
            )
        if kind == 5:
            return (
                f"fid_offset[{at}] names list {value}, for {owner}; there are {self.lists} lists, "
                f"one per table and shard"
            )
        ends = [t.start + t.width for t in self.plan.tasks if t.feature == feature]
        number = int(self.fid_offset[at]) >> 32
        length = self.lengths[request * self.lists + number]
        return (
            f"fid_offset[{at}] is value {value} of list {number}, for {owner}; its slices read up "
            f"to value {value + max(ends, default=0)}, the list has {length}"
        )


def vectors(embeddings: Sequence[Tensor], index: Tensor) -> list[Tensor]:
    """Returns the lists of vectors, contiguous. Raises unless all are flat floats of one dtype."""
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
    """Checks shapes and sizes. `sizes` are the numbers of values in each list of vectors.

    Without `request_sizes` there is one request: with lists, or with one flat tensor that `lengths`
    divides by shard, then table. With `request_sizes`, `lengths` holds the number of values of each
    request in each list.
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
    sizes: Sequence[Sequence[int]],
    totals: Sequence[int],
    batch_sizes: Sequence[int],
    plan: LayoutTasks,
) -> list[LayoutRequest]:
    words = len(plan.config.names) + 1
    nfl, offsets, ids = sizes
    for name, one, total in zip(("nfl", "feature", "fid"), sizes, totals, strict=True):
        _adds_up(f"{name}_size", one, total, f"{name}_offset")
    if any(size != words for size in nfl):
        raise InputError(
            f"nfl_offset has {' + '.join(map(str, nfl))} words; it must have {words} per request: "
            f"one per feature, and the end."
        )
    if any(size < 1 for size in offsets):
        raise InputError("feature_offset is empty; without entries it is [0].")
    if any(rows < 0 for rows in batch_sizes):
        raise InputError(f"batch_size is {min(batch_sizes)}; it must be at least 0.")
    starts = [list(accumulate(one, initial=0)) for one in (nfl, offsets, ids, batch_sizes)]
    return [
        LayoutRequest(
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
    """Returns the lists, by table and shard, of a flat tensor ordered by shard, then table."""
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
    """Returns each request's part of each list, request by request."""
    if lengths is None:
        raise InputError("emb_size is missing; give the values of each request in each list.")
    lists = len(sizes)
    values = typed("emb_size", lengths.reshape(-1), WHOLE, (requests * lists,)).tolist()
    starts = []
    for i, size in enumerate(sizes):
        mine = values[i::lists]
        _adds_up(f"emb_size of list {i}", mine, size, f"embeddings[{i}]")
        starts.append([first for first, _ in pairwise(accumulate(mine, initial=0))])
    return values, [(i, starts[i][r]) for r in range(requests) for i in range(lists)]


_LOW = 0xFFFFFFFF


def to_element_encoding(
    fid_offset: Int64[Tensor, "ids"],
    version: int,
    config: FeatureConfigs,
    num_shards: int,
    fid_list_row_splits: Sequence[Int64[Tensor, "features+1"]] | None = None,
    *,
    validate: bool = False,
) -> Int64[Tensor, "ids"]:
    """Returns words of version 1 or 2 as `list << 32 | first value`.

    Words of versions 3 to 5 already have this form and are returned without a copy. Version 1
    counts rows of a list, whose vectors must have one width. Version 2 counts rows of a feature's
    part of a list; `fid_list_row_splits` gives the rows of each part.

    >>> from hedgerow.monolith.layouts import LayoutFeature
    >>> config = FeatureConfigs({"f": LayoutFeature("t", "SUM", (4,))}, {})
    >>> to_element_encoding(torch.tensor([0, 3, 2**32 + 1]), 1, config, 2).tolist()
    [0, 12, 4294967300]
    """
    arguments.tensor("fid_offset", fid_offset)
    text, shards = text_of(config), arguments.whole("num_shards", num_shards)
    if version in (1, 2) and not isinstance(version, bool):
        splits = None
        if fid_list_row_splits is not None:
            splits = arguments.tensors("fid_list_row_splits", fid_list_row_splits)
            for i, one in enumerate(splits):
                arguments.reachable("fid_offset", fid_offset, f"fid_list_row_splits[{i}]", one)
        return _TO_ELEMENTS(fid_offset, version, text, shards, splits, validate)
    if isinstance(version, bool) or version not in (3, 4, 5):
        raise InputError(f"version is {version!r}; it must be 1 to 5.")
    arguments.typed("fid_offset", fid_offset, (torch.int64,), (None,))
    _check_shards(shards)
    return fid_offset


def _check_shards(num_shards: int) -> None:
    if num_shards < 1:
        raise InputError(f"num_shards is {num_shards}; there is at least one shard.")


def _to_elements(
    fid_offset: Tensor,
    version: int,
    config: str,
    num_shards: int,
    splits: list[Tensor] | None,
    validate: bool,
) -> Tensor:
    _check_shards(num_shards)
    words = arguments.typed("fid_offset", fid_offset, (torch.int64,), (None,))
    found = plan_of(config).config
    if version == 1:
        return _from_rows(words, found, num_shards, validate)
    return _from_feature_rows(words, found, num_shards, splits, validate)


def _shape(fid_offset: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(fid_offset, memory_format=torch.contiguous_format)


_TO_ELEMENTS = register(
    "to_element_encoding(Tensor fid_offset, int version, str config, int num_shards, "
    "Tensor[]? fid_list_row_splits, bool validate) -> Tensor",
    cpu=_to_elements,
    plain=_to_elements,
    shapes=_shape,
)


def _members(config: FeatureConfigs) -> list[list[int]]:
    """Returns the widths of each table's features, by number."""
    widths: dict[str, list[int]] = {table: [] for table in config.tables}
    for name in config.names:
        widths[config.features[name].table].append(config.features[name].width)
    return list(widths.values())


def _joined(lists: Tensor, values: Tensor, validate: bool) -> Tensor:
    if arguments.looks_inside(values, validate) and values.numel() and int(values.max()) > _LOW:
        raise InputError(f"fid_offset leads to value {int(values.max())}; it must be below 2^32.")
    return lists << 32 | values


def _from_rows(words: Tensor, config: FeatureConfigs, shards: int, validate: bool) -> Tensor:
    members = _members(config)
    for table, widths in zip(config.tables, members, strict=True):
        if len(set(widths)) > 1:
            raise InputError(
                f"table {table!r} has vectors {sorted(set(widths))} wide; version 1 needs one "
                f"width per table: use version 2 or 3."
            )
    lists, rows = words >> 32, words & _LOW
    arguments.in_range("list numbers of fid_offset", lists, len(members) * shards, validate)
    width = words.new_tensor([widths[0] for widths in members])
    return _joined(lists, rows * width[lists // shards], validate)


def _from_feature_rows(
    words: Tensor,
    config: FeatureConfigs,
    shards: int,
    splits: Sequence[Tensor] | None,
    validate: bool,
) -> Tensor:
    members = _members(config)
    if splits is None or len(splits) != len(members) * shards:
        raise InputError(
            f"fid_list_row_splits has {'none' if splits is None else len(splits)}; version 2 needs "
            f"{len(members) * shards}, one per table and shard."
        )
    parts = [
        one
        for table, widths in enumerate(members)
        for shard in range(shards)
        for one in _parts(table * shards + shard, widths, splits[table * shards + shard])
    ]
    table = words.new_tensor(parts, dtype=torch.int64).reshape(-1, 4)
    lists, starts, widths, rows = table.unbind(1)
    part, row = words >> 32, words & _LOW
    arguments.in_range("list numbers of fid_offset", part, len(parts), validate)
    if arguments.looks_inside(words, validate) and bool((row >= rows[part]).any()):
        at = int((row >= rows[part]).nonzero()[0])
        raise InputError(
            f"fid_offset[{at}] is row {int(row[at])} of part {int(part[at])}, which has "
            f"{int(rows[part[at]])}."
        )
    return _joined(lists[part], starts[part] + row * widths[part], validate)


def _parts(number: int, widths: list[int], splits: Tensor) -> list[tuple[int, int, int, int]]:
    """Returns list, first value, width and rows of each feature's part of one list."""
    arguments.typed(f"fid_list_row_splits[{number}]", splits, (torch.int64,), (len(widths) + 1,))
    rows = splits.diff().tolist()
    if int(splits[0]) != 0 or any(count < 0 for count in rows):
        raise InputError(
            f"fid_list_row_splits[{number}] is {splits.tolist()}; it must go up from 0."
        )
    found, first = [], 0
    for width, count in zip(widths, rows, strict=True):
        found.append((number, first, width, count))
        first += count * width
    if first > _LOW:
        raise InputError(
            f"fid_list_row_splits[{number}] divides {first} values; a list must be below 2^32."
        )
    return found
