"""Cases of `hedgerow bench gpu`: the ops, each against its twin of torch's ops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag, pad

from hedgerow.kernels import pool
from hedgerow.kernels.layout import Arrays
from hedgerow.monolith.layouts import FeatureConfigs, LayoutFeature, OutConfig, Slice, operators
from hedgerow.monolith.layouts.config import text_of
from hedgerow.ops import fused_gather, reorder, segment
from hedgerow.routing import bucketize
from hedgerow.routing.router import Router

from .gpu_timer import Case

_KEY, _DIM = 8, 64
_ROW = 4 * _DIM
_FEATURES, _MOST_IDS = 26, 6
_SHARDS = 8


@dataclass(frozen=True, slots=True)
class _Sizes:
    ids: int = 1 << 20
    distinct: int = 350_000
    segments: int = 100_000
    batch: int = 16_384
    slots: int = 1 << 22


_QUICK = _Sizes(ids=512, distinct=100, segments=60, batch=16, slots=1024)


def ops_cases(device: torch.device, quick: bool) -> Iterator[Case]:
    """One after the other; each holds its tensors no longer than it is measured."""
    sizes = _QUICK if quick else _Sizes()
    random = torch.Generator(device).manual_seed(3)
    yield from _windows(sizes, random)
    yield from _segments(sizes, random)
    yield from _pooled(sizes, random)
    yield from _layouts(sizes, random)
    yield from _routed(sizes, random)


def _integers(low: int, high: int, n: int, random: torch.Generator) -> Tensor:
    return torch.randint(low, high, (n,), generator=random, device=random.device)


def _rows(n: int, random: torch.Generator) -> Tensor:
    """Small whole numbers over 8: sums of them are exact, in any order."""
    return _integers(-32, 33, n * _DIM, random).float().view(n, _DIM) / 8


def _same(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> bool:
    pairs = zip(ours, theirs, strict=True)
    return all(torch.allclose(a, b, rtol=1e-6, atol=1e-6) for a, b in pairs)


def _windows(sizes: _Sizes, random: torch.Generator) -> Iterator[Case]:
    flat = _rows(sizes.distinct, random).view(-1)
    offsets = [_integers(0, sizes.distinct, sizes.ids, random) * _DIM]
    given = (flat, offsets, [_DIM], False)
    yield Case(
        "fused gather",
        sizes.ids * (_KEY + _ROW) + 4 * len(flat),
        lambda: fused_gather.fused_gather_by_kernel(*given),
        sizes.ids,
        lambda: _same(
            fused_gather.fused_gather_by_kernel(*given),
            fused_gather.fused_gather_embeddings_by_input_plain(*given),
        ),
        lambda: fused_gather.fused_gather_embeddings_by_input_plain(*given),
    )
    grads = [_rows(sizes.ids, random)]
    back = (len(flat), grads, offsets, [_DIM], torch.tensor(0.5), False)
    yield Case(
        "fused gather gradient",
        sizes.ids * (_KEY + _ROW) + 4 * len(flat),
        lambda: fused_gather.fused_gather_gradient_by_kernel(*back),
        sizes.ids,
        lambda: _same(
            [fused_gather.fused_gather_gradient_by_kernel(*back)],
            [fused_gather.fused_gather_gradient_plain(*back)],
        ),
        lambda: fused_gather.fused_gather_gradient_plain(*back),
    )


def _segments(sizes: _Sizes, random: torch.Generator) -> Iterator[Case]:
    vectors = _rows(sizes.ids, random)
    rows = _integers(0, sizes.segments, sizes.ids, random).sort().values
    summed = ([rows], [vectors], [sizes.segments, _DIM], [2], False)
    moved = sizes.ids * _ROW + sizes.segments * _ROW
    yield Case(
        "segment sum",
        moved + sizes.ids * _KEY,
        lambda: segment.segment_sum_by_kernel(*summed),
        sizes.ids,
        lambda: _same(segment.segment_sum_by_kernel(*summed), segment.segment_sum_plain(*summed)),
        lambda: segment.segment_sum_plain(*summed),
    )
    numbers = torch.arange(sizes.segments + 1, device=rows.device)
    splits = torch.searchsorted(rows, numbers)
    cut = ([splits], [vectors], [_DIM // 4, _DIM - _DIM // 4], [2], False)
    yield Case(
        "reduce and split",
        moved + sizes.segments * _KEY,
        lambda: segment.reduce_and_split_by_kernel(*cut),
        sizes.ids,
        lambda: _same(
            segment.reduce_and_split_by_kernel(*cut), segment.reduce_and_split_plain(*cut)
        ),
        lambda: segment.reduce_and_split_plain(*cut),
    )
    yield Case(  # torch's own kernel is what combiners use
        "sum of ragged rows, by torch",
        moved + sizes.segments * _KEY,
        lambda: segment.ragged_sum(splits, vectors),
        sizes.ids,
    )


def _pooled(sizes: _Sizes, random: torch.Generator) -> Iterator[Case]:
    table = Arrays.make(sizes.slots // 16, _DIM, random.device)
    table.values[:, :_DIM] = _rows(1024, random).repeat(-(-len(table.values) // 1024), 1)[
        : len(table.values)
    ]
    slots = _integers(0, sizes.slots, sizes.ids, random)
    rows = _integers(0, sizes.segments, sizes.ids, random).sort().values
    splits = torch.searchsorted(rows, torch.arange(sizes.segments + 1, device=rows.device))
    weights = torch.ones(sizes.ids, device=rows.device) / 2
    values = table.values[:, :_DIM]
    for pooling, given in (("sum", None), ("mean", None), ("sum", weights)):

        def ours(pooling: str = pooling, given: Tensor | None = given) -> Tensor:
            return pool.pool(table, slots, slots, splits, pooling, given)

        def theirs(pooling: str = pooling, given: Tensor | None = given) -> Tensor:
            return embedding_bag(
                *(slots, values, splits[:-1]), mode=pooling, per_sample_weights=given
            )

        weighed = "" if given is None else ", weighted"
        yield Case(
            f"pool from table rows, {pooling}{weighed}",
            sizes.ids * (_KEY + _ROW + (0 if given is None else 4))
            + sizes.segments * (_KEY + _ROW),
            ours,
            sizes.ids,
            lambda ours=ours, theirs=theirs: _same([ours()], [theirs()]),
            theirs,
        )


def _layouts(sizes: _Sizes, random: torch.Generator) -> Iterator[Case]:
    """26 features of one table, 1 to 6 ids a sample, summed or averaged and joined."""
    names = [f"f{number:02}" for number in range(_FEATURES)]
    config = FeatureConfigs(
        {name: LayoutFeature("t", ("SUM", "MEAN")[i % 2], (_DIM,)) for i, name in enumerate(names)},
        {"all": OutConfig("CONCAT", tuple(Slice(name, 0, _DIM) for name in names))},
    )
    flat = [_rows(sizes.distinct, random).view(-1)]
    entries = _FEATURES * sizes.batch
    lengths = _integers(1, _MOST_IDS + 1, entries, random)
    ids = int(lengths.sum())
    index = (
        _integers(0, sizes.distinct, ids, random) * _DIM,
        pad(lengths.cumsum(0), (1, 0)).int(),
        torch.arange(_FEATURES + 1, device=lengths.device) * sizes.batch,
    )
    rest = (*index, [sizes.batch], None, None, text_of(config), 1, False)
    yield Case(
        "layout",
        ids * _KEY + 4 * len(flat[0]) + entries * (4 + _ROW),
        lambda: operators.layout_by_kernel(flat, *rest),
        ids,
        lambda: _same(
            operators.layout_by_kernel(flat, *rest), operators.forward_plain(flat, *rest)
        ),
        lambda: operators.forward_plain(flat, *rest),
    )
    grads = operators.layout_by_kernel(flat, *rest)
    back = (grads, None, [len(flat[0])], *rest)
    yield Case(
        "layout backward",
        entries * (4 + _ROW) + ids * _KEY + 4 * len(flat[0]),
        lambda: operators.layout_backward_by_kernel(*back),
        ids,
        lambda: _near(
            operators.layout_backward_by_kernel(*back)[0], operators.backward_plain(*back)[0]
        ),
        lambda: operators.backward_plain(*back),
    )


def _near(ours: Tensor, theirs: Tensor) -> bool:
    """Equal up to the order of sums, which neither fixes."""
    return float((ours - theirs).norm() / theirs.norm()) < 1e-5


def _routed(sizes: _Sizes, random: torch.Generator) -> Iterator[Case]:
    keys = _integers(-(2**62), 2**62, sizes.ids, random)
    rows = _integers(0, sizes.segments, sizes.ids, random)
    lengths = torch.zeros(sizes.segments, dtype=torch.int64, device=keys.device)
    lengths.index_add_(0, rows, torch.ones_like(rows))
    routers = (Router("hash_roundrobin", _SHARDS),)
    batch = bucketize.BucketizeBatch(lengths, keys, routers, [0, sizes.segments], None)

    def ours() -> list[Tensor]:
        found = bucketize.bucketize_by_kernel(batch, False, True, False)
        return _parts(found)

    def theirs() -> list[Tensor]:
        return _parts(
            bucketize.bucketize_by_torch(
                lengths, keys, routers, [0, sizes.segments], None, False, True
            )
        )

    yield Case(
        "bucketize for 8 ranks",
        sizes.ids * 3 * _KEY + sizes.segments * (1 + _SHARDS) * _KEY,
        ours,
        sizes.ids,
        lambda: all(torch.equal(a, b) for a, b in zip(ours(), theirs(), strict=True)),
        theirs,
    )
    repeated = [_integers(0, sizes.distinct, sizes.ids // 4, random) for _ in range(4)]
    given = (repeated, _SHARDS, [_DIM] * 4, False)
    yield Case(  # sizes of results are data, so it waits once
        "fused reorder of 4 slots for 8 ranks, by torch's sorts",
        sizes.ids * (_KEY + 4) + sum(len(one.unique()) for one in repeated) * _KEY,
        lambda: reorder.fused_reorder_on_device(*given),
        sizes.ids,
        lambda: all(
            torch.equal(a, b)
            for a, b in zip(
                reorder.fused_reorder_on_device(*given),
                reorder.fused_reorder_by_indices_plain(*given),
                strict=True,
            )
        ),
        lambda: reorder.fused_reorder_by_indices_plain(*given),
    )


def _parts(found: bucketize.Bucketized) -> list[Tensor]:
    permute = found.unbucketize_permute
    return [found.lengths, found.keys, *([] if permute is None else [permute])]
