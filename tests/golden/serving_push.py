"""Vectors of pushes: their bytes, their parts, and the Predict calls they become."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from hedgerow.wire import push, tensors
from hedgerow.wire.codec import from_bytes, to_bytes
from hedgerow.wire.messages import parameter_sync, tf_serving

from .runner import Case, take
from .serving_area import AREA


@AREA.handles("push_request_bytes", "cases")
def _bytes(case: Case) -> None:
    value = case.take({"name", "fields", "hex", "byte_size", "also_decodes_from_packed_hex"})
    request = parameter_sync.PushRequest(**value["fields"])
    assert to_bytes(request).hex() == value["hex"]
    assert request.ByteSize() == value["byte_size"]
    for text in (value["hex"], value["also_decodes_from_packed_hex"]):
        assert from_bytes(parameter_sync.PushRequest, bytes.fromhex(text)) == request


@AREA.handles("push_to_predict", "cases")
def _predict(case: Case) -> None:
    value = case.take(
        {
            *("name", "push_request", "predict_request_hex_sorted_maps"),
            *("update_num_on_success", "inputs"),
        }
    )
    request = parameter_sync.PushRequest(**value["push_request"])
    assert push.row_count(request) == value["update_num_on_success"]
    typed = push.to_predict(request, compat="typed")
    assert to_bytes(typed).hex() == value["predict_request_hex_sorted_maps"]
    data = bytes.fromhex(value["predict_request_hex_sorted_maps"])
    for found in (typed, push.to_predict(request), from_bytes(tf_serving.PredictRequest, data)):
        assert set(found.inputs) == set(value["inputs"])
        for alias, wanted in value["inputs"].items():
            _same_input(found.inputs[alias], wanted)


def _same_input(message: Any, wanted: dict[str, Any]) -> None:
    wanted = take(wanted, {"dtype", "shape", "values"})
    found = tensors.to_torch(message)
    assert message.dtype == wanted["dtype"]
    assert list(found.shape) == wanted["shape"]
    assert found.reshape(-1).tolist() == wanted["values"]


@AREA.handles("request_split", "cases")
def _split(case: Case) -> None:
    value = case.take(
        {
            *("name", "tables", "values", "multi", "signature_name", "model_name"),
            *("timeout_in_ms", "max_message_length", "byte_size", "parts"),
        }
    )
    request = _request(value)
    assert request.ByteSize() == value["byte_size"]
    parts = push.split_request(request, value["max_message_length"], "reference")
    assert len(parts) == len(value["parts"])
    for part, wanted in zip(parts, value["parts"], strict=True):
        wanted = take(
            wanted,
            {"rows", "first_fid", "timeout_in_ms_present", "timeout_in_ms", "byte_size"},
            {"sha256"},
        )
        tables = push.tables_of(part)
        assert [len(table.fids) for table in tables] == wanted["rows"]
        firsts = [table.fids[0] if table.fids else None for table in tables]
        assert firsts == wanted["first_fid"]
        assert part.HasField("timeout_in_ms") is wanted["timeout_in_ms_present"]
        assert part.timeout_in_ms == wanted["timeout_in_ms"]
        assert part.ByteSize() == wanted["byte_size"]
        if "sha256" in wanted:
            assert hashlib.sha256(to_bytes(part)).hexdigest() == wanted["sha256"]


def _request(value: dict[str, Any]) -> Any:
    names = {key: value[key] for key in ("model_name", "signature_name", "timeout_in_ms")}
    request = parameter_sync.PushRequest(
        **{key: name for key, name in names.items() if name is not None}
    )
    for table in value["tables"]:
        table = take(table, {"unique_id", "rows", "dim", "first_fid"})
        fids = torch.arange(table["first_fid"], table["first_fid"] + table["rows"])
        rows = fids.float()[:, None].expand(-1, table["dim"]).contiguous()
        push.add_rows(request, table["unique_id"], fids, rows, multi=value["multi"])
    return request
