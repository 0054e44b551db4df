"""Layout ops as torch sees them: checked, compiled, exported; and the memory they take."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from hedgerow import native
from hedgerow.core.ids import Ragged
from hedgerow.monolith.layouts import (
    FeatureConfigs,
    LayoutFeature,
    OutConfig,
    Slice,
    fused_embedding_to_layout,
    fused_embedding_to_layout_requests,
    shard_fids,
)
from hedgerow.monolith.layouts.inputs import indices, vectors
from hedgerow.monolith.layouts.operators import (
    backward_plain,
    embedding_to_layout,
    embedding_to_layout_backward,
    forward_plain,
)

from .layout_cases import Batch, batch_of, grads_like
from .layout_model import by_shard


def _batch(rows: int = 3) -> Batch:
    features = {"f": LayoutFeature("t", "MEAN", (3,)), "g": LayoutFeature("u", "FIRSTN", (2, 2), 2)}
    outs = {
        "a": OutConfig("CONCAT", (Slice("f", 0, 2), Slice("f", 1, 3))),
        "b": OutConfig("STACK", (Slice("g", 0, 3), Slice("g", 1, 4))),
    }
    return batch_of(1, rows=rows, shards=2, config=FeatureConfigs(features, outs))


def _forms(batch: Batch) -> list[tuple[list[Tensor], tuple[Any, ...]]]:
    """Vectors and further arguments: a list, one flat tensor, two requests."""
    found, lists = batch.found, batch.leaves()
    index = (found.fid_offset, found.feature_offset, found.nfl_offset)
    settings = (batch.config.text, batch.shards, False)
    sizes = torch.tensor([[one.shape[0]] * 2 for one in reversed(index)])
    twice = [torch.cat([one, one]).detach().requires_grad_() for one in lists]
    joined = [torch.cat([one, one]) for one in index]
    flat = by_shard(lists, batch.shards).detach().requires_grad_()
    rows = batch.rows
    return [
        (lists, (*index, [rows], None, None, *settings)),
        ([flat], (*index, [rows], None, found.emb_lengths.long(), *settings)),
        (twice, (*joined, [rows, rows], sizes, found.emb_size.long().repeat(2), *settings)),
    ]


@pytest.mark.parametrize("form", [0, 1, 2])
def test_torch_checks_the_ops(form: int) -> None:
    lists, given = _forms(_batch())[form]
    torch.library.opcheck(embedding_to_layout, (lists, *given))
    outputs = embedding_to_layout(lists, *given)
    grads = [one.requires_grad_() for one in grads_like([one.detach() for one in outputs])]
    sizes = [one.shape[0] for one in lists]
    scale = torch.tensor(0.5)
    torch.library.opcheck(embedding_to_layout_backward, (grads, None, sizes, *given))
    torch.library.opcheck(embedding_to_layout_backward, (grads, scale, sizes, *given))


def test_a_compiled_step_equals_eager() -> None:
    def step(lists: list[Tensor], batch: Batch) -> Tensor:
        outputs = fused_embedding_to_layout(lists, batch.config, **batch.index)
        flat = by_shard(lists, batch.shards)
        again = fused_embedding_to_layout(
            flat, batch.config, **batch.index, emb_lengths=batch.found.emb_lengths
        )
        return sum(((one + two) ** 2).sum() for one, two in zip(outputs, again, strict=True))

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for rows in (3, 5):
        batch = _batch(rows)
        eager, fast = batch.leaves(), batch.leaves()
        one, two = step(eager, batch), compiled(fast, batch)
        torch.testing.assert_close(one, two)
        torch.testing.assert_close(torch.autograd.grad(one, eager), torch.autograd.grad(two, fast))


def test_compiled_requests_equal_eager() -> None:
    batch = _batch()
    lists, given = _forms(batch)[2]
    sizes, emb_size = given[4], given[5]

    def step(lists: list[Tensor]) -> list[Tensor]:
        return fused_embedding_to_layout_requests(
            lists,
            batch.config,
            fid_offset=given[0],
            feature_offset=given[1],
            nfl_offset=given[2],
            batch_size=[batch.rows, batch.rows],
            nfl_size=sizes[0],
            feature_size=sizes[1],
            fid_size=sizes[2],
            emb_size=emb_size,
            num_shards=batch.shards,
        )

    wanted = step(lists)
    found = torch.compile(step, fullgraph=True, backend="aot_eager")(lists)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_compiled_programs_refuse_bad_indices() -> None:
    batch = _batch()
    bad = {**batch.index, "fid_offset": batch.index["fid_offset"] | 9 << 32}

    def step(lists: list[Tensor]) -> list[Tensor]:
        return fused_embedding_to_layout(lists, batch.config, **bad)

    with pytest.raises(ValueError, match="names list"):
        torch.compile(step, fullgraph=True, backend="aot_eager")(batch.leaves())


def test_outputs_share_no_memory_with_inputs() -> None:
    features = {"f": LayoutFeature("t", "SUM", (2,))}
    config = FeatureConfigs(features, {"x": OutConfig("NONE", (Slice("f", 0, 2),))})
    found = shard_fids({"f": (False, Ragged.from_lists([[1], [2]]))}, 2, 1, config, True)
    vectors = torch.ones(4)
    (out,) = fused_embedding_to_layout(
        [vectors],
        config,
        fid_offset=found.fid_offset,
        feature_offset=found.feature_offset,
        nfl_offset=found.nfl_offset,
        batch_size=2,
        num_shards=1,
    )
    out += 1
    assert vectors.tolist() == [1] * 4


def test_a_million_ids_take_no_more_memory_than_they_must() -> None:
    rows, each = 10_000, 100
    config = FeatureConfigs(
        {"f": LayoutFeature("t", "SUM", (4,)), "g": LayoutFeature("t", "MEAN", (4,))},
        {"x": OutConfig("NONE", (Slice("f", 0, 4), Slice("g", 0, 4)))},
    )
    splits = torch.arange(rows + 1) * (each // 2)
    features = {
        name: (False, Ragged(torch.randint(0, 2**40, (rows * each // 2,)), splits))
        for name in ("f", "g")
    }
    before = native.threads()
    try:
        for threads in (1, 2):
            native.set_threads(threads)
            native.reset_scratch_bytes()
            found = shard_fids(features, rows, 5, config, unique=True)
            # Beside the results: a map of a feature's 500,000 ids, 16 bytes a slot, 2^20 slots, in
            # each thread's part, and 8 bytes a shard for the listing.
            assert native.scratch_bytes() <= 2 * (16 * 2**20 + 8 * 5)
            native.reset_scratch_bytes()
            shard_fids(features, rows, 5, config, unique=False)
            assert native.scratch_bytes() <= 2 * 8 * 5
            lists = [torch.zeros(int(size), requires_grad=True) for size in found.emb_size]
            native.reset_scratch_bytes()
            outputs = fused_embedding_to_layout(
                lists,
                config,
                fid_offset=found.fid_offset,
                feature_offset=found.feature_offset,
                nfl_offset=found.nfl_offset,
                batch_size=rows,
                num_shards=5,
            )
            assert native.scratch_bytes() == 0  # ids are read where they are
            torch.autograd.backward(outputs, [torch.ones_like(one) for one in outputs])
            # Three numbers a list tell whether features share vectors; one thread need not know.
            assert native.scratch_bytes() == (0 if threads == 1 else 3 * 8 * 5)
    finally:
        native.set_threads(before)


def test_contiguous_inputs_are_read_in_place() -> None:
    batch = _batch()
    lists, given = _forms(batch)[0]
    kept = vectors(lists, given[0])
    assert [one.data_ptr() for one in kept] == [one.data_ptr() for one in lists]
    found = indices([one.shape[0] for one in lists], *given[:-1])
    places = (found.fid_offset, found.feature_offset, found.nfl_offset)
    assert [one.data_ptr() for one in places] == [one.data_ptr() for one in given[:3]]


@pytest.mark.parametrize("form", [0, 1, 2])
def test_what_other_devices_run_equals_the_core(form: int) -> None:
    lists, given = _forms(_batch())[form]
    outputs = embedding_to_layout(lists, *given)
    torch.testing.assert_close(forward_plain(lists, *given), outputs)
    grads, sizes = grads_like(outputs), [one.shape[0] for one in lists]
    for scale in (None, torch.tensor(0.5)):
        wanted = embedding_to_layout_backward(grads, scale, sizes, *given)
        torch.testing.assert_close(backward_plain(grads, scale, sizes, *given), wanted)
    bad = (given[0] | 9 << 32, *given[1:-1], True)
    with pytest.raises(ValueError, match="names list"):
        forward_plain(lists, *bad)
    with pytest.raises(ValueError, match="names list"):
        backward_plain(grads, None, sizes, *bad)
