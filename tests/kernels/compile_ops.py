"""Starts the kernels of ops, for `compile_for_hopper`."""

from __future__ import annotations

import torch


def ops_kernels(dtypes: list[torch.dtype]) -> None:
    """Each once; of several dtypes, all poolings too."""
    from hedgerow.kernels import pool, route, segments, to_layout
    from hedgerow.kernels.layout import Arrays, FirstValues, RowSegment
    from hedgerow.monolith.layouts import FeatureConfigs, LayoutFeature, OutConfig, Slice
    from hedgerow.monolith.layouts.config import text_of
    from hedgerow.monolith.layouts.inputs import plan_of
    from hedgerow.monolith.layouts.operators import _work
    from hedgerow.routing.bucketize import _rules
    from hedgerow.routing.router import Router

    ids, splits = torch.arange(100), torch.tensor([0, 50, 100])
    for dtype in dtypes:
        flat, one = torch.ones(6400, dtype=dtype), torch.ones(())
        rows = segments.copy_windows(ids, flat, 64)
        segments.add_windows(ids, rows, one, torch.zeros(6400))
        segments.sum_segments(splits, rows)
    table = Arrays.make(8, 64, torch.device("cpu"))
    numbers = torch.zeros(12, dtype=torch.float64)
    part = RowSegment(0, 64, 64, FirstValues("uniform", -0.1, 0.1, 7), "sgd", numbers)
    for pooling in pool.POOLINGS if len(dtypes) > 1 else ("sqrtn",):
        pool.pool(table, ids, ids, splits, pooling, torch.ones(100), [part])
    rules, bounds = _rules([Router("continuous", 2, bounds=[0, 7])])
    found = route.route(ids, splits, torch.tensor([0, 2]), rules, bounds, 2, 2)
    route.move(ids, ids, found.positions, torch.ones(100))
    config = FeatureConfigs(
        {"f": LayoutFeature("t", "MEAN", (8,))}, {"out": OutConfig("NONE", (Slice("f", 0, 8),))}
    )
    work = _work(plan_of(text_of(config)), torch.device("cpu"))
    call = to_layout.LayoutCall.of((ids, ids, ids), [[0, 0, 1, 0, 1, 0, 1]], [(0, 0)], [0])
    for dtype in dtypes:
        values = torch.ones(8, dtype=dtype)
        to_layout.to_layout(work, call, values, values)
        sums = torch.zeros(8, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
        to_layout.to_layout_backward(work, call, values, sums, sums[0])
