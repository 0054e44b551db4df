"""Layouts refuse what cannot be right, before anything is written; deviations of Monolith."""

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
    fused_embedding_to_layout_grad,
    fused_embedding_to_layout_requests,
    fused_embedding_to_layout_versioned,
    shard_fids,
    to_element_encoding,
)

F, G = LayoutFeature("t", "SUM", (2,)), LayoutFeature("u", "FIRSTN", (1, 2), 2)
CONFIG = FeatureConfigs(
    {"f": F, "g": G}, {"x": OutConfig("NONE", (Slice("f", 0, 2), Slice("g", 0, 3)))}
)


def _index(**other: Any) -> dict[str, Any]:
    """Two rows; f has an id a row, g one for both."""
    return {
        "fid_offset": torch.tensor([0, 2, 1 << 32]),
        "feature_offset": torch.tensor([0, 1, 2, 3], dtype=torch.int32),
        "nfl_offset": torch.tensor([0, 1 << 31 | 2, 4]),
        "batch_size": 2,
        "num_shards": 1,
        **other,
    }


def _lists() -> list[Tensor]:
    return [torch.tensor([1.0, 2, 3, 4]), torch.tensor([5.0, 6, 7])]


def test_the_batch_of_these_tests_is_right() -> None:
    first, second = fused_embedding_to_layout(_lists(), CONFIG, **_index())
    assert first.tolist() == [[1, 2], [3, 4]]
    assert second.tolist() == [[[5, 6, 7], [0, 0, 0]]] * 2


BAD_INDICES = {
    "list": ({"fid_offset": torch.tensor([0, 2, 2 << 32])}, r"fid_offset\[2\] names list 2"),
    "negative list": ({"fid_offset": torch.tensor([-1, 2, 1 << 32])}, "names list 4294967295"),
    "past the end": (
        {"fid_offset": torch.tensor([0, 3, 1 << 32])},
        "up to value 5, the list has 4",
    ),
    "offset falls": (
        {"feature_offset": torch.tensor([0, 2, 1, 3], dtype=torch.int32)},
        r"feature_offset\[2\] is 1",
    ),
    "offset beyond": (
        {"feature_offset": torch.tensor([0, 1, 2, 9], dtype=torch.int32)},
        r"feature_offset\[3\] is 9",
    ),
    "negative offset": (
        {"feature_offset": torch.tensor([-1, 1, 2, 3], dtype=torch.int32)},
        r"feature_offset\[0\] is -1",
    ),
    "no offsets": ({"feature_offset": torch.tensor([], dtype=torch.int32)}, "feature_offset is em"),
    "nfl falls": ({"nfl_offset": torch.tensor([3, 1 << 31 | 2, 4])}, r"nfl_offset\[1\] says 2"),
    "nfl beyond": ({"nfl_offset": torch.tensor([0, 1 << 31 | 2, 9])}, r"nfl_offset\[2\] says 9"),
    "nfl length": ({"nfl_offset": torch.tensor([0, 4])}, "it must have 3 per request"),
    "shared entries": ({"nfl_offset": torch.tensor([1 << 31, 1 << 31 | 2, 4])}, "has 2 entries"),
    "dtype of words": (
        {"fid_offset": torch.tensor([0, 2, 1], dtype=torch.int32)},
        "fid_offset has",
    ),
    "float offsets": ({"feature_offset": torch.tensor([0.0, 1, 2, 3])}, "feature_offset has dtype"),
    "shards": ({"num_shards": 0}, "num_shards is 0"),
    "more shards": ({"num_shards": 2}, "embeddings has 2 entries; it must have 4"),
    "negative batch": ({"batch_size": -1}, "batch_size is -1"),
    "batch": ({"batch_size": 2.0}, "batch_size is 2.0"),
    "lengths": ({"emb_lengths": [4, 3]}, "they cut one flat tensor"),
}


@pytest.mark.parametrize("name", BAD_INDICES)
def test_d17_bad_indices_are_refused_forward_and_backward(name: str) -> None:
    change, message = BAD_INDICES[name]
    with pytest.raises(ValueError, match=message):
        fused_embedding_to_layout(_lists(), CONFIG, **_index(**change))
    grads = [torch.ones(2, 2), torch.ones(2, 2, 3)]
    with pytest.raises(ValueError, match=message):
        fused_embedding_to_layout_grad(
            _lists(), CONFIG, **_index(**change), layout_tensors_grad=grads
        )


def test_d20_a_feature_with_fewer_rows_than_the_batch_is_refused() -> None:
    index = _index(batch_size=3)
    with pytest.raises(ValueError, match="'f' has 2 entries; it must have 3"):
        fused_embedding_to_layout(_lists(), CONFIG, **index)


BAD_VECTORS = {
    "one tensor": (torch.ones(7), {}, "pass emb_lengths"),
    "too few": ([torch.ones(4)], {}, "embeddings has 1 entries; it must have 2"),
    "whole numbers": ([torch.ones(4).long(), torch.ones(3).long()], {}, "dtype torch.int64"),
    "two types": ([torch.ones(4), torch.ones(3).double()], {}, "all must have one"),
    "no tensor": ([[1.0], torch.ones(3)], {}, r"embeddings\[0\] is a list"),
    "lengths too short": (torch.ones(7), {"emb_lengths": [7]}, r"shape \(1,\); it must be \(2\)"),
    "lengths of less": (torch.ones(7), {"emb_lengths": [3, 3]}, "adds up to 6"),
    "negative lengths": (torch.ones(7), {"emb_lengths": [8, -1]}, "holds -1"),
    "float lengths": (torch.ones(7), {"emb_lengths": torch.ones(2)}, "emb_lengths has dtype"),
}


@pytest.mark.parametrize("name", BAD_VECTORS)
def test_bad_vectors_are_refused(name: str) -> None:
    embeddings, more, message = BAD_VECTORS[name]
    with pytest.raises(ValueError, match=message):
        fused_embedding_to_layout(embeddings, CONFIG, **_index(**more))


BAD_GRADS = {
    "too few": ([torch.ones(2, 2)], None, "has 1 tensors; the layouts make 2"),
    "shape": ([torch.ones(2, 2), torch.ones(2, 3)], None, "must be"),
    "types": ([torch.ones(2, 2), torch.ones(2, 2, 3).double()], None, "has dtype torch.float64"),
    "scale": ([torch.ones(2, 2), torch.ones(2, 2, 3)], torch.ones(2), "it is one number"),
}


@pytest.mark.parametrize("name", BAD_GRADS)
def test_bad_gradients_are_refused(name: str) -> None:
    grads, scale, message = BAD_GRADS[name]
    with pytest.raises(ValueError, match=message):
        fused_embedding_to_layout_grad(
            _lists(),
            CONFIG,
            **_index(),
            layout_tensors_grad=grads,
            layout_tensors_grad_scale=scale,
        )


SIZES = {"nfl_size": [3], "feature_size": [4], "fid_size": [3], "emb_size": [4, 3]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nfl_size": [2]}, "nfl_size adds up to 2"),
        ({"feature_size": [5]}, "feature_size adds up to 5"),
        ({"fid_size": [2]}, "fid_size adds up to 2"),
        ({"emb_size": [4, 4]}, "emb_size of list 1 adds up to 4"),
        ({"emb_size": [4]}, "emb_size has shape"),
        ({"fid_size": [3, 0]}, "one per request"),
        ({"nfl_size": [1, 2], "feature_size": [2, 2], "fid_size": [3, 0], "emb_size": [0] * 4,
          "batch_size": [1, 1]}, "it must have 3 per request"),
    ],
)  # fmt: skip
def test_sizes_of_requests_that_do_not_add_up_are_refused(
    change: dict[str, Any], message: str
) -> None:
    given = {**_index(batch_size=[2]), **SIZES, **change}
    with pytest.raises(ValueError, match=message):
        fused_embedding_to_layout_requests(_lists(), CONFIG, **given)


def test_versions_need_what_they_need() -> None:
    for version, more, message in (
        (0, {}, "version is 0"),
        (1, {"config": _mixed()}, "version 1 needs one width"),
        (2, {}, "version 2 needs 2"),
        (2, {"fid_list_row_splits": [torch.tensor([0, 1]), torch.tensor([0, 1])]}, "is row 2 of"),
        (2, {"fid_list_row_splits": [torch.tensor([0, 1]), torch.tensor([0])]}, "shape"),
        (2, {"fid_list_row_splits": [torch.tensor([1, 2]), torch.tensor([0, 1])]}, "up from 0"),
        (4, {}, "version 4 needs emb_lengths"),
        (3, {"batch_size": [2, 2]}, "batch_size has 2 entries"),
        (3, {"batch_size": torch.tensor([2, 2])}, "it is one whole number"),
    ):
        given = {**_index(), "config": CONFIG, "version": version, **more}
        with pytest.raises(ValueError, match=message):
            fused_embedding_to_layout_versioned(_lists(), **given)
    with pytest.raises(ValueError, match="below 2\\^32"):
        to_element_encoding(torch.tensor([2**32 - 1]), 1, CONFIG, 1)
    with pytest.raises(ValueError, match="list numbers of fid_offset holds 2"):
        to_element_encoding(torch.tensor([2 << 32]), 1, CONFIG, 1)


def _mixed() -> FeatureConfigs:
    return FeatureConfigs({"f": F, "g": LayoutFeature("t", "SUM", (3,))}, {})


def test_d12_several_first_n_slices_in_one_output_lie_where_the_table_says() -> None:
    features = {"g": LayoutFeature("t", "FIRSTN", (2,), 2)}
    slices = (Slice("g", 0, 1), Slice("g", 1, 2))
    outs = {"cat": OutConfig("CONCAT", slices), "pile": OutConfig("STACK", slices)}
    config = FeatureConfigs(features, outs)
    found = shard_fids({"g": (False, Ragged.from_lists([[1, 2, 3], [3]]))}, 2, 1, config, True)
    vectors = torch.tensor([1.0, 10, 2, 20, 3, 30])
    cat, pile = fused_embedding_to_layout(
        [vectors],
        config,
        fid_offset=found.fid_offset,
        feature_offset=found.feature_offset,
        nfl_offset=found.nfl_offset,
        batch_size=2,
        num_shards=1,
    )
    assert cat.tolist() == [[[1, 10], [2, 20]], [[3, 30], [0, 0]]]
    assert pile.tolist() == [[[[1], [2]], [[10], [20]]], [[[3], [0]], [[30], [0]]]]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_d13_overlapping_slices_collect_everything(version: int) -> None:
    config = FeatureConfigs(
        {"f": LayoutFeature("t", "SUM", (3,))},
        {"x": OutConfig("NONE", (Slice("f", 0, 2), Slice("f", 1, 3), Slice("f", 1, 2)))},
    )
    rows = torch.zeros(1, 3, requires_grad=True)
    outputs = fused_embedding_to_layout_versioned(
        [rows],
        config,
        version=version,
        fid_offset=torch.tensor([0, 0]),
        feature_offset=torch.tensor([0, 1, 2], dtype=torch.int32),
        nfl_offset=torch.tensor([0, 3]),
        batch_size=2,
        num_shards=1,
        fid_list_row_splits=[torch.tensor([0, 1])],
    )
    (grad,) = torch.autograd.grad(outputs, [rows], [torch.ones_like(one) for one in outputs])
    assert grad.tolist() == [[2, 6, 2]]


def test_d15_the_low_word_is_unsigned_and_sums_have_64_bits() -> None:
    # A list of 2^32 values cannot be had here; the core only ever computes an address in it.
    memory, far = torch.tensor([1.0, 2.0]), 2**32 - 2
    words = torch.tensor([far, far])
    offsets = torch.tensor([0, 1, 2], dtype=torch.int32)
    nfl = torch.tensor([0, 3])
    plan = native.LayoutPlan(1, [0, 0, 0, 1, 0, 2, 2, 0, 2, 0])
    batch = native.LayoutBatch(
        1,
        [0, 0, 2, 0, 2, 0, 2],
        [far + 2],
        nfl.data_ptr(),
        offsets.data_ptr(),
        False,
        words.data_ptr(),
    )
    assert batch.check(plan)[0] == 0
    out = torch.empty(2, 2)
    batch.forward(plan, False, [memory.data_ptr() - 4 * far], [out.data_ptr()])
    assert out.tolist() == [[1, 2], [1, 2]]
    words[1] += 1  # one value too far, and not wrapped around to the start
    fault = batch.check(plan)
    assert fault[0] == 6
    assert fault[4] == far + 1


def test_d16_an_absent_feature_does_not_hide_the_ones_behind_it() -> None:
    names = ["a", "b", "c", "d"]
    features = {name: LayoutFeature("t", "SUM", (1,)) for name in names}
    slices = tuple(Slice(name, 0, 1) for name in names)
    config = FeatureConfigs(features, {"x": OutConfig("CONCAT", slices)})
    given = {name: (False, Ragged.from_lists([[1], [2]])) for name in ("b", "d")}
    found = shard_fids(given, 2, 1, config, True)
    (out,) = fused_embedding_to_layout(
        [torch.tensor([1.0, 2, 3, 4])],
        config,
        fid_offset=found.fid_offset,
        feature_offset=found.feature_offset,
        nfl_offset=found.nfl_offset,
        batch_size=2,
        num_shards=1,
    )
    assert out.tolist() == [[0, 1, 0, 3], [0, 2, 0, 4]]


def test_d19_minus_one_is_listed_once() -> None:
    config = FeatureConfigs({"f": LayoutFeature("t", "SUM", (1,))}, {})
    rows = Ragged.from_lists([[-1, -1], [0, -1, 0]])
    found = shard_fids({"f": (False, rows)}, 2, 1, config, unique=True)
    assert found.fid_list[0].tolist() == [-1, 0]
    assert found.fid_offset.tolist() == [0, 0, 1, 0, 1]


def test_the_producer_refuses_rows_that_do_not_fit() -> None:
    config = FeatureConfigs({"f": F}, {})
    right = Ragged.from_lists([[1], [2]])
    falling = Ragged.trusted(torch.tensor([1, 2]), torch.tensor([0, 3, 2]))
    short = Ragged.trusted(torch.tensor([1, 2]), torch.tensor([0, 1, 1]))
    for given, rows, shards, message in (
        ({"f": (False, right)}, 3, 1, "has 2 rows; it must have 3"),
        ({"f": (True, right)}, 2, 1, "it must have 1: one, since it is shared"),
        ({"f": (False, falling)}, 2, 1, "row_splits of feature 'f'"),
        ({"f": (False, short)}, 2, 1, r"to \[1\]; they must go from 0 to 2"),
        ({"f": (False, right)}, -1, 1, "batch_size is -1"),
        ({"f": (False, right)}, 2, 0, "num_shards is 0"),
        ({"f": (False, [[1], [2]])}, 2, 1, "Ragged of int64 ids"),
        ({"f": (1, right)}, 2, 1, "Ragged of int64 ids"),
        ({"f": (False, Ragged.from_lists([[1], [2]], torch.int32))}, 2, 1, "dtype torch.int32"),
    ):
        with pytest.raises(ValueError, match=message):
            shard_fids(given, rows, shards, config, unique=True)  # pyright: ignore[reportArgumentType]
