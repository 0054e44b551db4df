"""The layout op under Monolith's names: arguments, versions, and its serialized message."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from hedgerow.core.protobuf import bytes_field, varint, varint_field
from hedgerow.monolith.layouts import FeatureConfigs, LayoutFeature, OutConfig, Slice, monolith_call
from hedgerow.monolith.layouts.monolith_call import read_feature_configs
from tests.ops.layout_cases import batch_of, grads_like
from tests.ops.layout_model import by_shard, older_words

POOLINGS = {"SUM": 0, "MEAN": 1, "FIRSTN": 3}
OUT_TYPES = {"CONCAT": 0, "STACK": 1, "ADDN": 2, "NONE": 3}


def message_of(config: FeatureConfigs, packed: bool = True) -> bytes:
    """The message Monolith would write, its own fields filled in."""

    def repeated(number: int, values: tuple[int, ...]) -> bytes:
        if packed:
            return bytes_field(number, b"".join(varint(one) for one in values))
        return b"".join(varint_field(number, one) for one in values)

    def entry(number: int, name: str, value: bytes) -> bytes:
        return bytes_field(number, bytes_field(1, name.encode()) + bytes_field(2, value))

    parts = []
    for name, one in config.features.items():
        value = bytes_field(1, one.table.encode()) + varint_field(2, POOLINGS[one.pooling])
        value += repeated(3, one.slice_dims) + varint_field(4, one.max_sequence_length)
        parts.append(entry(1, name, value))
    for name, out in config.outs.items():
        value = b""
        for one in out.slices:
            cut = bytes_field(1, one.feature.encode())
            cut += varint_field(2, one.start) if one.start else b""
            cut += varint_field(3, one.end) + varint_field(4, 9) + varint_field(11, 2)
            value += bytes_field(1, cut)
        value += varint_field(2, OUT_TYPES[out.out_type])
        for dims in out.shape:
            value += bytes_field(3, repeated(1, dims))
        parts.append(entry(2, name, value))
    return b"".join(parts)


def test_arguments_are_monolith() -> None:
    first = inspect.signature(monolith_call.fused_embedding_to_layout).parameters
    assert list(first) == [
        "embeddings_list", "fid_list_row_split", "fid_offset", "feature_offset", "nfl_offset",
        "batch_size", "variant_type", "feature_cfgs", "ps_num", "fid_list_emb_row_lenth",
        "nfl_size", "feature_size", "fid_size", "emb_size", "parallel_flag", "version",
    ]  # fmt: skip
    second = inspect.signature(monolith_call.fused_embedding_to_layout_grad).parameters
    assert list(second) == [
        "nfl_offset", "feature_offset", "fid_offset", "batch_size", "embeddings_list",
        "fid_list_row_split", "layout_tensors_grad", "variant_type", "feature_cfgs", "ps_num",
        "fid_list_emb_row_lenth", "layout_tensors_grad_scale", "parallel_flag", "version",
    ]  # fmt: skip
    for given in (first, second):
        defaults = {n: p.default for n, p in given.items() if p.default is not p.empty}
        assert (defaults.pop("parallel_flag"), defaults.pop("version")) == (0, 3)
        assert set(defaults.values()) == {None}


@pytest.mark.parametrize("seed", range(4))
def test_versions_1_to_5_agree_forward_and_backward(seed: int) -> None:
    batch = batch_of(seed, rows=4, shards=3, one_width=True)
    found, config = batch.found, batch.config
    index = (found.fid_offset, found.nfl_offset, found.feature_offset, found.fid_list_row_splits)
    results = []
    for version in range(1, 6):
        lists, words, sizes = batch.leaves(), found.fid_offset, {}
        if version < 3:
            words = older_words(*index, config, 3, version)
        if version == 4:
            lists = [by_shard(lists, 3).detach().requires_grad_()]
        if version == 5:
            tensors = {"nfl_size": index[1], "feature_size": index[2], "fid_size": index[0]}
            sizes = {name: torch.tensor([one.shape[0]]) for name, one in tensors.items()}
            sizes["emb_size"] = found.emb_size
        rows: Any = torch.tensor([4], dtype=torch.int32) if version == 5 else 4
        splits = found.fid_list_row_splits
        outputs = monolith_call.fused_embedding_to_layout(
            lists, splits, words, found.feature_offset, found.nfl_offset, rows, "examplebatch",
            message_of(config, packed=seed % 2 == 0), 3, found.emb_lengths, **sizes,
            version=version,
        )  # fmt: skip
        fed = grads_like(outputs)
        for scale in (None, 0.25):
            plain = monolith_call.fused_embedding_to_layout_grad(
                found.nfl_offset, found.feature_offset, words, rows, lists, splits, fed,
                "instance", config, 3, found.emb_lengths, scale, version=version,
            )  # fmt: skip
            by_torch = torch.autograd.grad(outputs, lists, fed, retain_graph=True)
            torch.testing.assert_close(plain, [one * (scale or 1) for one in by_torch])
        by_torch = list(by_torch) if version != 4 else _by_table(by_torch[0], batch)
        results.append((outputs, by_torch))
    for one in results[1:]:
        torch.testing.assert_close(one, results[0], rtol=0, atol=0)


def _by_table(flat: torch.Tensor, batch: Any) -> list[torch.Tensor]:
    parts = flat.split(batch.found.emb_lengths.tolist())
    tables = len(batch.config.tables)
    return [parts[s * tables + t] for t in range(tables) for s in range(batch.shards)]


def test_messages_are_read_whole() -> None:
    features = {
        "f": LayoutFeature("t", "SUM", (1, 300), 7),
        "é": LayoutFeature("u", "FIRSTN", (4,), 3),
        "m": LayoutFeature("t", "MEAN", (2, 2)),
    }
    outs = {
        "a": OutConfig("CONCAT", (Slice("f", 0, 200), Slice("m", 1, 2)), ((-1, 201),)),
        "b": OutConfig("NONE", (Slice("é", 1, 4), Slice("é", 0, 1)), ((8, 3, 3), (-1, 3, 1))),
        "c": OutConfig("ADDN", (Slice("f", 0, 1), Slice("m", 3, 4))),
        "d": OutConfig("STACK", (Slice("m", 0, 1), Slice("m", 3, 4))),
    }
    config = FeatureConfigs(features, outs)
    for packed in (True, False):
        assert read_feature_configs(message_of(config, packed)) == config
    more = varint_field(9, 1) + message_of(config)
    assert read_feature_configs(more) == config


def test_messages_that_are_none_are_refused() -> None:
    feature = bytes_field(1, b"t") + bytes_field(3, varint(2))
    named = bytes_field(1, b"f")
    for message, wrong in (
        (b"\x08\x01", "no FeatureConfigs message"),
        (b"\x0a\x05abc", "no FeatureConfigs message"),
        (bytes_field(1, bytes_field(1, b"\xff") + bytes_field(2, feature)), "no FeatureConfigs"),
        (bytes_field(1, named + bytes_field(2, feature + varint_field(2, 2))), "pooling_type is 2"),
        (bytes_field(2, named + bytes_field(2, varint_field(2, 4))), "out_type is 4"),
        (bytes_field(2, named), "at least one slice"),
    ):
        with pytest.raises(ValueError, match=wrong):
            read_feature_configs(message)


def test_the_door_refuses_what_it_cannot_read() -> None:
    batch = batch_of(0, rows=2, shards=1)
    found = batch.found
    given = {
        "embeddings_list": batch.leaves(),
        "fid_list_row_split": None,
        "fid_offset": found.fid_offset,
        "feature_offset": found.feature_offset,
        "nfl_offset": found.nfl_offset,
        "batch_size": 2,
        "variant_type": "example",
        "feature_cfgs": batch.config,
        "ps_num": 1,
    }
    assert monolith_call.fused_embedding_to_layout(**given)
    for change, message in (
        ({"variant_type": "Example"}, "variant_type is 'Example'"),
        ({"feature_cfgs": {}}, "feature_cfgs is a dict"),
        ({"version": 6}, "version is 6"),
        ({"version": 5, "nfl_size": [1]}, "together"),
        ({"version": 4}, "needs emb_lengths"),
    ):
        with pytest.raises(ValueError, match=message):
            monolith_call.fused_embedding_to_layout(**{**given, **change})
