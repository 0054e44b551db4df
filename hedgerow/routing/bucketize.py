"""Sorts the keys of a ragged batch by the shard that owns them, ready to be sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor

from .. import native
from ..core import checks
from ..core.errors import DtypeError, InputError
from ..core.hashing import signed64
from ..core.shapes import Float32, Int64
from .router import Router, codes, widened

MOST_ELEMENTS = 2**31 - 1
"""The largest number of keys of a batch and of rows of its result: positions are 32-bit."""


@dataclass(frozen=True, slots=True, eq=False)
class Bucketized:
    """A batch sorted by owner: row r of the input is row p * R + r of the result, for shard p.

    R is the number of input rows. Inside a row, keys keep their order. Fields that were not
    requested are None.
    """

    lengths: Int64[Tensor, "shards * rows"]
    keys: Int64[Tensor, "n"]
    weights: Float32[Tensor, "n"] | None
    positions: Int64[Tensor, "n"] | None  # positions of the keys in their source rows
    unbucketize_permute: Int64[Tensor, "n"] | None  # keys[permute] is the input's order


@dataclass(frozen=True, slots=True)
class BucketizeBatch:
    """Checked arguments of `bucketize`."""

    lengths: Tensor
    keys: Tensor
    routers: tuple[Router, ...]
    feature_rows: list[int]  # the offsets of the features in the rows
    weights: Tensor | None

    @property
    def shards(self) -> int:
        """The number of shards."""
        return self.routers[0].shards

    @property
    def result_rows(self) -> int:
        """The number of rows over all shards."""
        return self.shards * len(self.lengths)


def bucketize(
    lengths: Int64[Tensor, "rows"],
    keys: Int64[Tensor, "n"],
    routers: Sequence[Router],
    *,
    batch_sizes: Sequence[int] | None = None,
    weights: Float32[Tensor, "n"] | None = None,
    positions: bool = False,
    sequence: bool = False,
    local_keys: bool = False,
    validate: bool = False,
) -> Bucketized:
    """Sorts keys by owner, stably, with one router per feature.

    Rows are ordered by feature, then by sample. Every feature has the same number of samples, or
    those in `batch_sizes`. `positions` requests the position of each key in its source row, and
    `sequence` the permutation back to the input's order. With `local_keys`, the result holds the
    keys as their owners number them (`Router.local_keys`); tables that keep global keys do not need
    that. 32-bit lengths and keys are widened. The sum of the lengths is checked on the CPU; on a
    device only with `validate`, because the check waits for the device.

    >>> routers = [Router("roundrobin", 2)]
    >>> lengths, keys = torch.tensor([2, 1]), torch.tensor([5, 4, 8])
    >>> found = bucketize(lengths, keys, routers, sequence=True)
    >>> found.lengths.tolist(), found.keys.tolist(), found.unbucketize_permute.tolist()
    ([1, 1, 1, 0], [4, 8, 5], [2, 0, 1])
    """
    batch = _checked(lengths, keys, routers, batch_sizes, weights, validate)
    checks.flag("positions", positions)
    checks.flag("sequence", sequence)
    checks.flag("local_keys", local_keys)
    if batch.keys.device.type == "cpu":
        return _by_core(batch, positions, sequence, local_keys)
    if find_spec("triton") is not None:
        return bucketize_by_kernel(batch, positions, sequence, local_keys)
    return bucketize_by_torch(
        batch.lengths, batch.keys, batch.routers, batch.feature_rows, weights, positions, sequence,
        local_keys,
    )  # fmt: skip


def _checked(
    lengths: Tensor,
    keys: Tensor,
    routers: Sequence[Router],
    batch_sizes: Sequence[int] | None,
    weights: Tensor | None,
    validate: bool,
) -> BucketizeBatch:
    lengths, keys = _whole("lengths", lengths), _whole("keys", keys)
    if lengths.device != keys.device:
        raise InputError(f"lengths are on {lengths.device}, keys on {keys.device}; use one device.")
    if weights is not None:
        checks.tensor("weights", weights, torch.float32, (len(keys),), keys.device)
    rules = _same_shards(routers)
    feature_rows = _feature_rows(len(lengths), len(rules), batch_sizes)
    batch = BucketizeBatch(lengths, keys, rules, feature_rows, weights)
    for name, size in (("keys", len(keys)), ("rows of the result", batch.result_rows)):
        if max(size, batch.shards) > MOST_ELEMENTS:
            raise InputError(f"{size} {name}; at most {MOST_ELEMENTS}: split the batch.")
    if validate or keys.device == checks.CPU:
        _check_lengths(lengths, len(keys))
    return batch


def _whole(name: str, value: Tensor) -> Tensor:
    if isinstance(value, Tensor) and value.device.type == "cpu":
        return widened(name, value)
    narrow = isinstance(value, Tensor) and value.dtype == torch.int32
    checks.tensor(name, value, torch.int32 if narrow else torch.int64, (None,), None)
    return value.long()


def _same_shards(routers: Sequence[Router]) -> tuple[Router, ...]:
    rules = tuple(routers)
    if not rules:
        raise InputError("routers is empty; give one for every feature.")
    for router in rules:
        if not isinstance(router, Router):
            raise DtypeError(f"routers has a {type(router).__name__}; give Routers.")
        if router.shards != rules[0].shards:
            raise InputError(
                f"routers have {rules[0].shards} and {router.shards} shards; all features of a "
                f"batch go to the same shards."
            )
    return rules


def _feature_rows(rows: int, features: int, batch_sizes: Sequence[int] | None) -> list[int]:
    if batch_sizes is None:
        if rows % features:
            raise InputError(
                f"lengths has {rows} rows for {features} features; pass batch_sizes if features "
                f"have different numbers of samples."
            )
        batch_sizes = [rows // features] * features
    sizes = [checks.count("batch_sizes", size) for size in batch_sizes]
    if len(sizes) != features or sum(sizes) != rows:
        raise InputError(
            f"batch_sizes is {sizes}; it must have {features} numbers with the sum {rows}, one "
            f"number for every router."
        )
    return [sum(sizes[:f]) for f in range(features + 1)]


def _check_lengths(lengths: Tensor, n: int) -> None:
    if len(lengths) and not 0 <= int(lengths.min()) <= int(lengths.max()) <= n:
        bad = int(lengths.min()) if int(lengths.min()) < 0 else int(lengths.max())
        raise InputError(f"lengths has {bad}; a length lies in 0..{n}, the number of keys.")
    if int(lengths.sum()) != n:
        raise InputError(f"lengths add up to {int(lengths.sum())}; there are {n} keys.")


def _by_core(
    batch: BucketizeBatch, positions: bool, sequence: bool, local_keys: bool
) -> Bucketized:
    keys, n = batch.keys, len(batch.keys)
    splits = _splits(batch.lengths)
    feature_rows = torch.tensor(batch.feature_rows)
    numbers = codes(router.dist_type for router in batch.routers)
    found = Bucketized(
        lengths=torch.empty(batch.result_rows, dtype=torch.int64),
        keys=torch.empty_like(keys),
        weights=None if batch.weights is None else torch.empty_like(batch.weights),
        positions=torch.empty(n, dtype=torch.int64) if positions else None,
        unbucketize_permute=torch.empty(n, dtype=torch.int64) if sequence else None,
    )
    native.bucketize(
        keys.data_ptr(),
        splits.data_ptr(),
        len(batch.lengths),
        feature_rows.data_ptr(),
        numbers.data_ptr(),
        [router.numbers() for router in batch.routers],
        [router.bounds or () for router in batch.routers],
        batch.shards,
        _at(batch.weights),
        local_keys,
        found.lengths.data_ptr(),
        found.keys.data_ptr(),
        _at(found.weights),
        _at(found.positions),
        _at(found.unbucketize_permute),
    )
    return found


def bucketize_by_torch(
    lengths: Tensor,
    keys: Tensor,
    routers: Sequence[Router],
    feature_rows: Sequence[int],
    weights: Tensor | None = None,
    positions: bool = False,
    sequence: bool = False,
    local_keys: bool = False,
) -> Bucketized:
    """Does the same for checked input by torch operations; also the benchmark baseline."""
    rows, n, shards = len(lengths), len(keys), routers[0].shards
    splits = _splits(lengths)
    key_rows = torch.repeat_interleave(
        torch.arange(rows, device=keys.device), lengths, output_size=n
    )
    borders = splits[torch.tensor(feature_rows, device=keys.device)].tolist()
    placed = [
        router.places_by_torch(keys[start:stop])
        for router, start, stop in zip(routers, borders, borders[1:], strict=False)
    ]
    owners = torch.cat([owner for owner, _ in placed])
    sent = torch.cat([local for _, local in placed]) if local_keys else keys
    order = torch.argsort(owners, stable=True)
    permute = torch.empty_like(order)
    permute[order] = torch.arange(n, device=keys.device)
    return Bucketized(
        lengths=torch.bincount(owners * rows + key_rows, minlength=shards * rows),
        keys=sent[order],
        weights=None if weights is None else weights[order],
        positions=(torch.arange(n, device=keys.device) - splits[key_rows])[order]
        if positions
        else None,
        unbucketize_permute=permute if sequence else None,
    )


def bucketize_by_kernel(
    batch: BucketizeBatch, positions: bool, sequence: bool, local_keys: bool
) -> Bucketized:
    """Does the same for checked input on a device, by a kernel and torch's sort."""
    from ..kernels.route import move, route

    features, (rules, bounds) = len(batch.routers), _rules(batch.routers)
    told = torch.cat([rules.view(-1), torch.tensor(batch.feature_rows), bounds])
    told = told.to(batch.keys.device, non_blocking=True)  # one copy that does not block
    rules, feature_rows, bounds = told.split([rules.numel(), features + 1, len(bounds)])
    found = route(
        *(batch.keys, _splits(batch.lengths), feature_rows, rules, bounds, batch.shards),
        max(len(router.bounds or ()) for router in batch.routers),
    )
    order = found.owners.argsort(stable=True)
    sent = found.local if local_keys else batch.keys
    keys, places, weights, permute = move(order, sent, found.positions, batch.weights)
    return Bucketized(
        lengths=found.lengths,
        keys=keys,
        weights=weights,
        positions=places if positions else None,
        unbucketize_permute=permute if sequence else None,
    )


def _rules(routers: Sequence[Router]) -> tuple[Tensor, Tensor]:
    """Returns the kernel's parameters of each router, and the bounds of all routers."""
    rules, bounds = [], [0]
    for router in routers:
        own = [signed64(bound) for bound in router.bounds or ()]
        rules.append([router.code, *router.numbers(), len(bounds), len(own)])
        bounds += own
    return torch.tensor(rules), torch.tensor(bounds)


def _splits(lengths: Tensor) -> Tensor:
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0))


def _at(value: Tensor | None) -> int:
    return 0 if value is None else value.data_ptr()
