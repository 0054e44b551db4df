"""What a configuration of layouts may say, and what it makes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hedgerow.monolith.layouts import (
    FeatureConfigs,
    LayoutFeature,
    OutConfig,
    Slice,
    fused_embedding_to_layout,
)

FEATURES = {
    "s": {"table": "t", "pooling": "SUM", "slice_dims": [2, 3], "max_sequence_length": 9},
    "m": {"table": "t", "pooling": "MEAN", "slice_dims": [5]},
    "n": {"table": "u", "pooling": "FIRSTN", "slice_dims": [5], "max_sequence_length": 2},
    "o": {"table": "u", "pooling": "FIRSTN", "slice_dims": [5], "max_sequence_length": 3},
}


def _config(out_type: str, *slices: tuple[str, int, int], **more: Any) -> FeatureConfigs:
    named = [{"feature": name, "start": start, "end": end} for name, start, end in slices]
    out = {"out_type": out_type, "slices": named, **more}
    return FeatureConfigs.from_json({"features": FEATURES, "outs": {"x": out}})


@pytest.mark.parametrize(
    ("out_type", "slices", "sizes"),
    [
        ("NONE", [("s", 0, 2), ("n", 1, 5)], [(2,), (2, 4)]),
        ("CONCAT", [("s", 0, 2), ("m", 0, 5)], [(7,)]),
        ("CONCAT", [("n", 0, 2), ("n", 0, 5)], [(2, 7)]),
        ("STACK", [("s", 0, 2), ("m", 3, 5), ("s", 1, 3)], [(3, 2)]),
        ("STACK", [("o", 0, 2), ("o", 3, 5)], [(2, 3, 2)]),
        ("ADDN", [("s", 0, 2), ("m", 3, 5)], [(2,)]),
    ],
)
def test_shapes_follow_the_table(
    out_type: str, slices: list[tuple[str, int, int]], sizes: list[tuple[int, ...]]
) -> None:
    inferred = _config(out_type, *slices)
    assert inferred.outs["x"].sizes(inferred.features) == sizes
    given = _config(out_type, *slices, shape=[[-1, *size] for size in sizes])
    assert FeatureConfigs.from_json(given.to_json()) == given
    for wrong in ([[-1, *size, 1] for size in sizes], [[-1, *size] for size in sizes] * 2, [[]]):
        with pytest.raises(ValueError, match="its slices make"):
            _config(out_type, *slices, shape=wrong)


def test_a_shape_may_name_the_rows() -> None:
    config = _config("NONE", ("s", 0, 2), ("m", 0, 1), shape=[[4, 2], [-1, 1]])
    index = {
        "fid_offset": torch.zeros(0, dtype=torch.int64),
        "feature_offset": torch.zeros(5, dtype=torch.int32),
        "nfl_offset": torch.tensor([1 << 31 | i for i in range(4)] + [5]),
        "num_shards": 1,
    }
    lists = [torch.zeros(0)] * 2
    assert fused_embedding_to_layout(lists, config, **index, batch_size=4)[0].shape == (4, 2)
    with pytest.raises(ValueError, match="batch_size is 3; the shape of layout 'x' says 4"):
        fused_embedding_to_layout(lists, config, **index, batch_size=3)
    with pytest.raises(ValueError, match="names batches of"):
        _config("NONE", ("s", 0, 2), ("m", 0, 1), shape=[[4, 2], [5, 1]])


@pytest.mark.parametrize(
    ("out_type", "slices", "message"),
    [
        ("NONE", [("q", 0, 2)], "'q', which is no feature"),
        ("NONE", [("s", 0, 6)], r"columns \[0, 6\) of 's', whose vector has 5"),
        ("NONE", [("s", 2, 2)], "is empty"),
        ("NONE", [("s", -1, 2)], "Slice.start is -1"),
        ("NONE", [], "at least one slice"),
        ("SUM", [("s", 0, 2)], "out_type is 'SUM'"),
        ("STACK", [("s", 0, 2), ("s", 0, 3)], r"\[2, 3\] wide"),
        ("ADDN", [("s", 0, 2), ("s", 0, 3)], r"\[2, 3\] wide"),
        ("ADDN", [("n", 0, 2)], "ADDN of a FIRSTN feature"),
        ("CONCAT", [("s", 0, 2), ("n", 0, 2)], r"lengths \[0, 2\]"),
        ("STACK", [("n", 0, 2), ("o", 0, 2)], r"lengths \[2, 3\]"),
    ],
)
def test_what_a_layout_may_not_say(
    out_type: str, slices: list[tuple[str, int, int]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        _config(out_type, *slices)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pooling": "MAX"}, "pooling is 'MAX'"),
        ({"pooling": "FIRSTN", "max_sequence_length": 0}, "FIRSTN keeps that many"),
        ({"slice_dims": []}, "slice_dims' sum is 0"),
        ({"slice_dims": [1, 0]}, "slice_dims is 0"),
        ({"table": 3}, "table is 3"),
        ({"width": 3}, r"has \['width'\]"),
    ],
)
def test_what_a_feature_may_not_say(change: dict[str, Any], message: str) -> None:
    features = {"s": {**FEATURES["s"], **change}}
    with pytest.raises(ValueError, match=message):
        FeatureConfigs.from_json({"features": features, "outs": {}})


def test_other_json_is_refused() -> None:
    for value in ({}, {"features": {}}, [], {"features": {}, "outs": {"x": {"out_type": "NONE"}}}):
        with pytest.raises(ValueError, match=r"lacks|mapping"):
            FeatureConfigs.from_json(value)  # pyright: ignore[reportArgumentType]


def test_names_are_ordered_by_their_bytes() -> None:
    features = {name: LayoutFeature("t", "SUM", (1,)) for name in ("f2", "f10", "F1", "é", "z")}
    config = FeatureConfigs(features, {"x": OutConfig("CONCAT", (Slice("z", 0, 1),))})
    assert config.names == ["F1", "f10", "f2", "z", "é"]
    assert hash(config) == hash(FeatureConfigs.from_json(config.to_json()))
