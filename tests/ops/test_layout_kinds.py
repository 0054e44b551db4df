"""Layouts given other kinds of arguments, words outside entries, and configurations of nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hedgerow.monolith.layouts import (
    FeatureConfigs,
    LayoutFeature,
    OutConfig,
    Slice,
    fused_embedding_to_layout,
    fused_embedding_to_layout_grad,
    fused_embedding_to_layout_requests,
    monolith_call,
    nest_layout,
    shard_fids,
    to_element_encoding,
)
from hedgerow.monolith.layouts.operators import forward_plain

CONFIG = FeatureConfigs(
    {"f": LayoutFeature("t", "SUM", (2,))}, {"x": OutConfig("NONE", (Slice("f", 0, 2),))}
)
EMPTY = FeatureConfigs({}, {})
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def _index(**other: Any) -> dict[str, Any]:
    return {
        "fid_offset": torch.tensor([0, 2]),
        "feature_offset": torch.tensor([0, 1, 2]),
        "nfl_offset": torch.tensor([0, 3]),
        "batch_size": 2,
        "num_shards": 1,
        **other,
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("word", [99 << 32, -1])
def test_words_in_no_entry_are_not_looked_at(dtype: torch.dtype, word: int) -> None:
    vectors = torch.arange(4.0).to(dtype)
    index = _index(fid_offset=torch.tensor([0, 2, word]))
    (out,) = fused_embedding_to_layout([vectors], CONFIG, **index)
    assert out.tolist() == [[0, 1], [2, 3]]
    three = [index[name] for name in ("fid_offset", "feature_offset", "nfl_offset")]
    (out,) = forward_plain([vectors], *three, [2], None, None, CONFIG.text, 1, True)
    assert out.tolist() == [[0, 1], [2, 3]]
    (grad,) = fused_embedding_to_layout_grad(
        [vectors], CONFIG, **index, layout_tensors_grad=[torch.ones(2, 2, dtype=dtype)]
    )
    assert grad.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(("dtype", "big"), [(torch.bfloat16, 256), (torch.float16, 2048)])
def test_halves_are_summed_in_float32_and_rounded_once(dtype: torch.dtype, big: int) -> None:
    features, index = (
        {"f": LayoutFeature("t", "SUM", (3,))},
        _index(fid_offset=torch.tensor([0, 0])),
    )
    columns = tuple(Slice("f", i, i + 1) for i in range(3))
    config = FeatureConfigs(features, {"x": OutConfig("ADDN", columns)})
    vector = torch.tensor([big, 1, 1], dtype=dtype)  # big + 1 is no number of this type
    (out,) = fused_embedding_to_layout([vector], config, **index)
    assert (out.dtype, out.tolist()) == (dtype, [[big + 2]] * 2)
    config = FeatureConfigs(features, {"x": OutConfig("NONE", columns[:1] * 3)})
    grads = [torch.tensor([[value], [0]], dtype=dtype) for value in (big, 1, 1)]
    (grad,) = fused_embedding_to_layout_grad([vector], config, **index, layout_tensors_grad=grads)
    assert (grad.dtype, grad.tolist()) == (dtype, [big + 2, 0, 0])


def test_widths_and_offsets_do_not_overflow() -> None:
    with pytest.raises(ValueError, match="at most 2\\^31 - 1"):
        LayoutFeature("t", "SUM", (2**33,))
    with pytest.raises(ValueError, match="sum is 2147483648; it must be at most"):
        LayoutFeature("t", "SUM", (2**30, 2**30))
    config = FeatureConfigs({"f": LayoutFeature("t", "SUM", (2**31 - 1,))}, {})
    assert to_element_encoding(torch.tensor([2]), 1, config, 1).tolist() == [2**32 - 2]
    splits = [torch.tensor([0, 2**33])]
    for words in ([3], [2**31], [2**32 - 1]):
        with pytest.raises(ValueError, match="below 2\\^32"):
            to_element_encoding(torch.tensor(words), 1, config, 1)
        with pytest.raises(ValueError, match="below 2\\^32"):
            to_element_encoding(torch.tensor(words), 2, config, 1, splits)
    with pytest.raises(ValueError, match="below 2\\^32"):
        to_element_encoding(torch.tensor([0]), 2, config, 1, [torch.tensor([0, 2**62])])


@pytest.mark.parametrize("version", [1, 2])
def test_versions_1_and_2_compile_with_their_checks(version: int) -> None:
    splits = [torch.tensor([0, 2])]

    def step(vectors: Tensor, words: Tensor) -> Tensor:
        (out,) = monolith_call.fused_embedding_to_layout(
            [vectors],
            splits,
            words,
            torch.tensor([0, 1, 2]),
            torch.tensor([0, 3]),
            2,
            "instance",
            CONFIG,
            1,
            version=version,
        )
        return out

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    vectors = torch.arange(4.0).reshape(2, 2).requires_grad_()
    out = compiled(vectors, torch.tensor([1, 0]))
    assert out.tolist() == [[2, 3], [0, 1]]
    out.sum().backward()
    assert vectors.grad is not None
    assert vectors.grad.tolist() == [[1, 1], [1, 1]]
    with pytest.raises(ValueError, match="list numbers of fid_offset holds 5"):
        compiled(vectors, torch.tensor([1, 5 << 32]))
    words = torch.tensor([1, 0])
    given = (words, version, CONFIG.text, 1, splits, False)
    torch.library.opcheck(torch.ops.hedgerow.to_element_encoding.default, given)
    found = to_element_encoding(words, version, CONFIG, 1, splits)
    found += 1
    assert words.tolist() == [1, 0]


def test_a_configuration_of_nothing_makes_nothing() -> None:
    found = shard_fids({}, 2, 1, EMPTY, True)
    index = _index(
        fid_offset=found.fid_offset,
        feature_offset=found.feature_offset,
        nfl_offset=found.nfl_offset,
    )
    assert fused_embedding_to_layout([], EMPTY, **index) == []
    flat = torch.empty(0, requires_grad=True)
    assert fused_embedding_to_layout(flat, EMPTY, **index, emb_lengths=found.emb_lengths) == []
    assert fused_embedding_to_layout_grad([], EMPTY, **index, layout_tensors_grad=[]) == []
    assert nest_layout([], EMPTY) == {}
    sizes = {"nfl_size": [1], "feature_size": [1], "fid_size": [0], "emb_size": []}
    joined = {**index, "batch_size": [2], **sizes}
    assert fused_embedding_to_layout_requests([], EMPTY, **joined) == []


@pytest.mark.parametrize("dtype", DTYPES)
def test_without_layouts_vectors_get_zeros(dtype: torch.dtype) -> None:
    config = FeatureConfigs({"f": LayoutFeature("t", "SUM", (2,))}, {})
    vectors = torch.ones(2, 2, dtype=dtype, requires_grad=True)
    assert fused_embedding_to_layout([vectors], config, **_index()) == []
    grad = fused_embedding_to_layout_grad([vectors], config, **_index(), layout_tensors_grad=[])
    assert torch.equal(grad[0], torch.zeros(2, 2, dtype=dtype))
    bad = _index(fid_offset=torch.tensor([0, 9 << 32]))
    with pytest.raises(ValueError, match="names list 9"):
        fused_embedding_to_layout_grad([vectors], config, **bad, layout_tensors_grad=[])


OTHER_KINDS = [
    *[
        {name: value}
        for name in ("fid_offset", "feature_offset", "nfl_offset")
        for value in ([0, 1, 2], np.arange(3), "abc", None, torch.arange(3, device="meta"))
    ],
    *[{"num_shards": value} for value in (None, "1", True, 1.0, torch.tensor(1.0), 2**70)],
    *[{"batch_size": value} for value in (None, "2", True, 2.5, [2], torch.tensor(2.0))],
    {"config": {}},
    {"config": None},
]


@pytest.mark.parametrize("change", OTHER_KINDS, ids=str)
def test_other_kinds_of_arguments_are_a_value_error(change: dict[str, Any]) -> None:
    given = {"config": CONFIG, **_index(**change)}
    with pytest.raises(ValueError, match=next(iter(change)) + "|on meta"):
        fused_embedding_to_layout([torch.ones(4)], **given)
    with pytest.raises(ValueError, match=next(iter(change)) + "|on meta"):
        fused_embedding_to_layout_grad(
            [torch.ones(4)], **given, layout_tensors_grad=[torch.ones(2, 2)]
        )


@pytest.mark.parametrize(
    "embeddings",
    [None, "abc", 3, [np.ones(4)], [[1.0] * 4], np.ones(4), [torch.ones(4, device="meta")]],
    ids=str,
)
def test_other_kinds_of_vectors_are_a_value_error(embeddings: Any) -> None:
    with pytest.raises(ValueError, match="embeddings"):
        fused_embedding_to_layout(embeddings, CONFIG, **_index())


@pytest.mark.parametrize("lengths", ["4", [4.9], [None], ["4"], [True], 4, torch.tensor([4.0])])
def test_other_kinds_of_lengths_are_a_value_error(lengths: Any) -> None:
    with pytest.raises(ValueError, match="emb_lengths"):
        fused_embedding_to_layout(torch.ones(4), CONFIG, **_index(), emb_lengths=lengths)


@pytest.mark.parametrize("value", [None, "x", [None], [1.5], 2, [True]], ids=str)
@pytest.mark.parametrize("name", ["batch_size", "nfl_size", "feature_size", "fid_size", "emb_size"])
def test_other_kinds_of_sizes_are_a_value_error(name: str, value: Any) -> None:
    sizes = {"nfl_size": [2], "feature_size": [3], "fid_size": [2], "emb_size": [4]}
    given = {**_index(batch_size=[2]), **sizes}
    assert fused_embedding_to_layout_requests([torch.ones(4)], CONFIG, **given)
    with pytest.raises(ValueError, match=name):
        fused_embedding_to_layout_requests([torch.ones(4)], CONFIG, **{**given, name: value})


@pytest.mark.parametrize(
    ("grads", "scale"),
    [
        (None, None),
        ("ab", None),
        ([np.ones((2, 2))], None),
        ([torch.ones(2, 2, device="meta")], None),
        ([torch.ones(2, 2)], [2.0]),
        ([torch.ones(2, 2)], "2"),
        ([torch.ones(2, 2)], True),
        ([torch.ones(2, 2)], torch.tensor(2.0, device="meta")),
    ],
    ids=str,
)
def test_other_kinds_of_gradients_are_a_value_error(grads: Any, scale: Any) -> None:
    with pytest.raises(ValueError, match="layout_tensors_grad"):
        fused_embedding_to_layout_grad(
            [torch.ones(4)],
            CONFIG,
            **_index(),
            layout_tensors_grad=grads,
            layout_tensors_grad_scale=scale,
        )


@pytest.mark.parametrize(
    "change",
    [
        {"fid_offset": [0]},
        {"fid_offset": "a"},
        {"version": "1"},
        {"version": True},
        {"num_shards": None},
        {"num_shards": True},
        {"config": {}},
        {"version": 2, "fid_list_row_splits": [[0, 1]]},
        {"version": 2, "fid_list_row_splits": "ab"},
        {"version": 2, "fid_list_row_splits": [torch.tensor([0, 1], device="meta")]},
        {"version": 2, "fid_list_row_splits": [torch.tensor([0, 1], dtype=torch.int32)]},
    ],
    ids=str,
)
def test_other_kinds_of_an_encoding_are_a_value_error(change: dict[str, Any]) -> None:
    given = {"fid_offset": torch.tensor([0]), "version": 1, "config": CONFIG, "num_shards": 1}
    with pytest.raises(ValueError, match=next(reversed(change))):
        to_element_encoding(**{**given, **change})


@pytest.mark.parametrize(
    "change",
    [
        {"config": {}},
        {"config": None},
        {"features": []},
        {"features": "f"},
        {"features": {"f": None}},
        {"features": {"f": (False,)}},
        {"unique": None},
        {"unique": 1},
        {"num_shards": True},
        {"batch_size": "2"},
    ],
    ids=str,
)
def test_other_kinds_for_the_producer_are_a_value_error(change: dict[str, Any]) -> None:
    given = {"features": {}, "batch_size": 2, "num_shards": 1, "config": CONFIG, "unique": True}
    with pytest.raises(ValueError, match=r"config|feature|unique|num_shards|batch_size"):
        shard_fids(**{**given, **change})


def test_numbers_of_numpy_make_the_same_configuration() -> None:
    feature = LayoutFeature("t", "FIRSTN", (np.int64(2),), np.int32(3))  # type: ignore[arg-type]
    part = Slice("f", np.int64(0), np.int16(2))  # type: ignore[arg-type]
    shape = ((np.int64(-1), 3, 2),)
    config = FeatureConfigs({"f": feature}, {"x": OutConfig("NONE", (part,), shape)})  # type: ignore[arg-type]
    assert FeatureConfigs.from_json(config.to_json()) == config
    assert type(config.features["f"].slice_dims[0]) is int


@pytest.mark.parametrize(
    "make",
    [
        lambda: LayoutFeature("t", "SUM", 4),  # type: ignore[arg-type]
        lambda: LayoutFeature("t", "SUM", "4"),  # type: ignore[arg-type]
        lambda: LayoutFeature("t", "SUM", (np.float32(4),)),  # type: ignore[arg-type]
        lambda: OutConfig("NONE", (("f", 0, 2),)),  # type: ignore[arg-type]
        lambda: OutConfig("NONE", None),  # type: ignore[arg-type]
        lambda: OutConfig("NONE", (Slice("f", 0, 2),), (3,)),  # type: ignore[arg-type]
        lambda: FeatureConfigs({"f": 3}, {}),  # type: ignore[dict-item]
        lambda: FeatureConfigs([], {}),  # type: ignore[arg-type]
        lambda: FeatureConfigs({}, {"x": ()}),  # type: ignore[dict-item]
        lambda: nest_layout([], {}),  # type: ignore[arg-type]
    ],
)
def test_other_kinds_of_configurations_are_a_value_error(make: Any) -> None:
    with pytest.raises(ValueError, match=r"pass|must be"):
        make()
