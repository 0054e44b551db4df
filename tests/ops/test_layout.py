"""The way of a batch through producer, shards and layouts equals loops over rows and ids."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow import native
from hedgerow.core.ids import Ragged
from hedgerow.monolith.layouts import (
    FeatureConfigs,
    LayoutFeature,
    OutConfig,
    Slice,
    fused_embedding_to_layout,
    fused_embedding_to_layout_grad,
    fused_embedding_to_layout_requests,
    fused_embedding_to_layout_versioned,
    nest_layout,
    shard_fids,
    to_element_encoding,
)
from hedgerow.monolith.layouts.inputs import indices
from hedgerow.monolith.layouts.operators import (
    embedding_to_layout_backward_plain,
    embedding_to_layout_plain,
)

from .layout_cases import Batch, batch_of, grads_like
from .layout_model import by_shard, layout_by_hand, older_words

SEEDS = st.integers(0, 2**31)
EXACT = {"rtol": 1e-12, "atol": 1e-12}


def _joined(batches: list[Batch]) -> dict[str, object]:
    """The arguments of the requests, one behind the other."""
    found = [one.found for one in batches]
    return {
        "fid_offset": torch.cat([one.fid_offset for one in found]),
        "feature_offset": torch.cat([one.feature_offset for one in found]),
        "nfl_offset": torch.cat([one.nfl_offset for one in found]),
        "batch_size": torch.tensor([one.rows for one in batches], dtype=torch.int32),
        "nfl_size": [one.nfl_offset.shape[0] for one in found],
        "feature_size": [one.feature_offset.shape[0] for one in found],
        "fid_size": [one.fid_offset.shape[0] for one in found],
        "emb_size": torch.stack([one.emb_size for one in found]),
        "num_shards": batches[0].shards,
    }


@settings(max_examples=150, deadline=None)
@given(SEEDS)
def test_the_whole_way_equals_loops_over_rows_and_ids(seed: int) -> None:
    batch = batch_of(seed)
    by_hand = layout_by_hand(batch.config, batch.features, batch.rows, batch.vectors)
    leaves = batch.leaves()
    outputs = fused_embedding_to_layout(leaves, batch.config, **batch.index)
    torch.testing.assert_close(outputs, by_hand, **EXACT)
    fed = grads_like(outputs)
    found = torch.autograd.grad(outputs, leaves, fed)
    # Through the lists of the shards the gradient reaches each id's own vector.
    ids = list(batch.vectors.leaves.values())
    through = _grads(batch.lists, ids, found)
    torch.testing.assert_close(through, _grads(by_hand, ids, fed), **EXACT)


def _grads(
    ends: Sequence[torch.Tensor], leaves: list[torch.Tensor], fed: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """The gradients of leaves, zeros where nothing led to one."""
    pairs = [(end, one) for end, one in zip(ends, fed, strict=True) if end.requires_grad]
    if not pairs or not leaves:
        return [torch.zeros_like(leaf) for leaf in leaves]
    one_by_one = list(zip(*pairs, strict=True))
    found = torch.autograd.grad(*one_by_one[:1], leaves, *one_by_one[1:], allow_unused=True)
    return [
        torch.zeros_like(leaf) if one is None else one
        for leaf, one in zip(leaves, found, strict=True)
    ]


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_versions_1_to_5_agree_forward_and_backward(seed: int) -> None:
    batch = batch_of(seed, one_width=True)
    found, config, shards = batch.found, batch.config, batch.shards
    index = (found.fid_offset, found.nfl_offset, found.feature_offset, found.fid_list_row_splits)
    results = []
    for version in range(1, 6):
        lists = batch.leaves()
        given = {**batch.index, "version": version}
        if version == 1:
            widths = {config.features[n].table: config.features[n].width for n in config.names}
            rows = [widths[t] for t in config.tables for _ in range(shards)]
            lists = [
                one.detach().view(-1, width).requires_grad_()
                for one, width in zip(lists, rows, strict=True)
            ]
        if version in (1, 2):
            given["fid_offset"] = older_words(*index, config, shards, version)
            given["fid_list_row_splits"] = found.fid_list_row_splits
        embeddings: object = lists
        if version == 4:
            embeddings, given["emb_lengths"] = by_shard(lists, shards), found.emb_lengths
        if version == 5:
            sizes = [one.shape[0] for one in (found.nfl_offset, found.feature_offset)]
            counts = [[size] for size in (*sizes, found.fid_offset.shape[0])]
            given["request_sizes"] = (*counts, found.emb_size)
            given["batch_size"] = [batch.rows]
        outputs = fused_embedding_to_layout_versioned(embeddings, config, **given)
        grads = torch.autograd.grad(outputs, lists, grads_like(outputs))
        assert [one.shape for one in grads] == [one.shape for one in lists]
        results.append((outputs, [one.reshape(-1) for one in grads]))
    for outputs, grads in results[1:]:
        for one, other in itertools.chain(
            zip(outputs, results[0][0], strict=True), zip(grads, results[0][1], strict=True)
        ):
            assert torch.equal(one, other)


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.sampled_from([None, 0.5, torch.tensor([3.0])]))
def test_the_plain_gradient_function_equals_autograd(
    seed: int, scale: float | torch.Tensor | None
) -> None:
    batch = batch_of(seed)
    lists = batch.leaves()
    flat = by_shard(lists, batch.shards)
    lengths = {"emb_lengths": batch.found.emb_lengths}
    for embeddings, more in ((lists, {}), (flat, lengths)):
        leaves = [embeddings] if isinstance(embeddings, torch.Tensor) else embeddings
        outputs = fused_embedding_to_layout(embeddings, batch.config, **batch.index, **more)
        fed = grads_like(outputs)
        wanted = torch.autograd.grad(outputs, leaves, fed)
        found = fused_embedding_to_layout_grad(
            embeddings,
            batch.config,
            **batch.index,
            **more,
            layout_tensors_grad=fed,
            layout_tensors_grad_scale=scale,
        )
        factor = 1.0 if scale is None else float(scale)
        torch.testing.assert_close(found, [one * factor for one in wanted], **EXACT)


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.integers(1, 4))
def test_d14_requests_joined_equal_single_calls(seed: int, count: int) -> None:
    first = batch_of(seed)
    others = [batch_of(seed + i, shards=first.shards, config=first.config) for i in range(1, count)]
    batches = [first, *others]
    apart = [one.leaves() for one in batches]
    singles = [
        fused_embedding_to_layout(lists, one.config, **one.index)
        for one, lists in zip(batches, apart, strict=True)
    ]
    wanted = [torch.cat(parts) for parts in zip(*singles, strict=True)]
    joined = [torch.cat([one.detach() for one in parts]) for parts in zip(*apart, strict=True)]
    joined = [one.requires_grad_() for one in joined]
    outputs = fused_embedding_to_layout_requests(joined, first.config, **_joined(batches))
    for one, other in zip(outputs, wanted, strict=True):
        assert torch.equal(one, other)
    fed = grads_like(outputs)
    found = torch.autograd.grad(outputs, joined, fed)
    leaves = [leaf for lists in apart for leaf in lists]
    mine = torch.autograd.grad(wanted, leaves, fed)
    parts = [mine[i :: len(joined)] for i in range(len(joined))]
    for one, other in zip(found, parts, strict=True):
        assert torch.equal(one, torch.cat(list(other)))


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_the_plain_chain_equals_the_core(seed: int) -> None:
    batch = batch_of(seed)
    for dtype in (torch.float32, torch.float64):
        lists = [one.detach().to(dtype) for one in batch.lists]
        found = batch.found
        index = (found.fid_offset, found.feature_offset, found.nfl_offset, [batch.rows])
        sizes = [one.shape[0] for one in lists]
        plan = indices(sizes, *index, None, None, batch.config.text, batch.shards)
        outputs = fused_embedding_to_layout(lists, batch.config, **batch.index)
        torch.testing.assert_close(embedding_to_layout_plain(plan, lists), outputs)
        fed = grads_like(outputs)
        grads = fused_embedding_to_layout_grad(
            lists, batch.config, **batch.index, layout_tensors_grad=fed
        )
        torch.testing.assert_close(embedding_to_layout_backward_plain(plan, sizes, fed), grads)


def test_half_precision_takes_the_plain_chain() -> None:
    batch = batch_of(11, rows=5)
    exact = fused_embedding_to_layout(batch.leaves(), batch.config, **batch.index)
    lists = batch.leaves(torch.bfloat16)
    outputs = fused_embedding_to_layout(lists, batch.config, **batch.index)
    assert {one.dtype for one in outputs} == {torch.bfloat16}
    torch.testing.assert_close([o.double() for o in outputs], exact, rtol=2e-2, atol=2e-2)
    grads = torch.autograd.grad(outputs, lists, grads_like(outputs))
    assert {one.dtype for one in grads} == {torch.bfloat16}


@pytest.mark.parametrize("overlap", [False, True])
def test_results_do_not_depend_on_the_threads(overlap: bool) -> None:
    draw = [batch_of(seed, rows=2000, shards=3, unique=True) for seed in (3, 4, 5)]
    before = native.threads()
    try:
        for batch in draw:
            lists = [torch.randn(one.shape[0]) for one in batch.lists]
            index = dict(batch.index)
            if overlap:  # every word of a table's list leads to one vector: features collide
                index["fid_offset"] = index["fid_offset"] & ~0xFFFFFFFF
                longest = max(one.width for one in batch.config.features.values())
                lists = [torch.randn(longest) for _ in lists]
            results = []
            for threads in (1, 2, 4):
                native.set_threads(threads)
                outputs = fused_embedding_to_layout(lists, batch.config, **index)
                fed = [torch.sin(torch.arange(one.numel())).view(one.shape) for one in outputs]
                grads = fused_embedding_to_layout_grad(
                    lists, batch.config, **index, layout_tensors_grad=fed
                )
                produced = shard_fids(batch.features, batch.rows, 3, batch.config, True)
                results.append([*outputs, *grads, produced.fid_offset, produced.flat_fids])
            for other in results[1:]:
                assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))
    finally:
        native.set_threads(before)


def _small() -> Batch:
    features = {"f": LayoutFeature("t", "MEAN", (3,)), "g": LayoutFeature("t", "FIRSTN", (2, 2), 2)}
    outs = {
        "a": OutConfig("CONCAT", (Slice("f", 0, 2), Slice("f", 1, 3))),
        "b": OutConfig("STACK", (Slice("g", 0, 3), Slice("g", 1, 4))),
        "c": OutConfig("NONE", (Slice("g", 0, 1), Slice("f", 0, 3))),
        "d": OutConfig("ADDN", (Slice("f", 0, 1), Slice("f", 2, 3))),
    }
    return batch_of(8, rows=3, shards=2, config=FeatureConfigs(features, outs))


def test_gradcheck_of_every_form() -> None:
    batch = _small()
    lists = batch.leaves()
    assert torch.autograd.gradcheck(
        lambda *x: tuple(fused_embedding_to_layout(list(x), batch.config, **batch.index)), lists
    )
    assert torch.autograd.gradgradcheck(
        lambda *x: tuple(fused_embedding_to_layout(list(x), batch.config, **batch.index)), lists
    )
    flat = by_shard(lists, 2).detach().requires_grad_()
    lengths = batch.found.emb_lengths
    assert torch.autograd.gradcheck(
        lambda x: tuple(
            fused_embedding_to_layout(x, batch.config, **batch.index, emb_lengths=lengths)
        ),
        [flat],
    )
    twice = [torch.cat([one, one]).detach().requires_grad_() for one in lists]
    assert torch.autograd.gradcheck(
        lambda *x: tuple(
            fused_embedding_to_layout_requests(list(x), batch.config, **_joined([batch, batch]))
        ),
        twice,
    )


def test_outputs_that_are_not_used_give_nothing() -> None:
    batch = _small()
    lists = batch.leaves()
    outputs = fused_embedding_to_layout(lists, batch.config, **batch.index)
    fed = [torch.zeros_like(one) for one in outputs]
    fed[1] = grads_like(outputs)[1]
    alone = torch.autograd.grad(outputs[1], lists, fed[1], retain_graph=True)
    assert all(
        torch.equal(a, b)
        for a, b in zip(alone, torch.autograd.grad(outputs, lists, fed), strict=True)
    )


def test_layouts_by_name() -> None:
    batch = _small()
    outputs = fused_embedding_to_layout(batch.leaves(), batch.config, **batch.index)
    nested = nest_layout(outputs, batch.config)
    assert list(nested) == ["a", "b", "c", "d"]
    assert nested["a"] is outputs[0]
    assert nested["c"] == [outputs[2], outputs[3]]
    with pytest.raises(ValueError, match="there are 4 tensors; the layouts have 5"):
        nest_layout(outputs[1:], batch.config)


def test_wide_offsets_and_words_that_end_with_n_are_taken() -> None:
    batch = _small()
    wanted = fused_embedding_to_layout(batch.leaves(), batch.config, **batch.index)
    index = dict(batch.index)
    index["feature_offset"] = index["feature_offset"].to(torch.int64)
    index["nfl_offset"] = index["nfl_offset"].clone()
    index["nfl_offset"][-1] -= 1
    found = fused_embedding_to_layout(batch.leaves(), batch.config, **index)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_older_words_come_back_to_elements() -> None:
    batch = _small()
    found = batch.found
    index = (found.fid_offset, found.nfl_offset, found.feature_offset, found.fid_list_row_splits)
    words = older_words(*index, batch.config, 2, 2)
    back = to_element_encoding(words, 2, batch.config, 2, found.fid_list_row_splits)
    assert torch.equal(back, found.fid_offset)
    assert to_element_encoding(found.fid_offset, 4, batch.config, 2) is found.fid_offset


def test_vectors_as_rows_and_strided_vectors_are_taken() -> None:
    features = {"f": LayoutFeature("t", "SUM", (2,))}
    config = FeatureConfigs(features, {"out": OutConfig("NONE", (Slice("f", 0, 2),))})
    ids = shard_fids({"f": (False, Ragged.from_lists([[1], [2], [1, 2]]))}, 3, 1, config, True)
    index = {
        "fid_offset": ids.fid_offset,
        "feature_offset": ids.feature_offset,
        "nfl_offset": ids.nfl_offset,
    }
    rows = torch.tensor([[1.0, 3.0], [2.0, 4.0]]).T.requires_grad_()
    (out,) = fused_embedding_to_layout([rows], config, **index, batch_size=3, num_shards=1)
    assert out.tolist() == [[1, 2], [3, 4], [4, 6]]
    out.sum().backward()
    assert rows.grad is not None
    assert rows.grad.tolist() == [[2, 2], [2, 2]]
