"""Vectors of messages: bytes that other implementations wrote, and what they read in them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from google.protobuf.json_format import ParseDict

from hedgerow.core.errors import HedgerowError
from hedgerow.wire import dtypes, push, tensors
from hedgerow.wire.codec import from_bytes, to_bytes
from hedgerow.wire.messages import agent_service, parameter_sync, tensor, tf_serving

from .runner import Case, take
from .serving_area import AREA


def _values(message: Any) -> list[Any]:
    """A message's values as JSON has them: strings in hex."""
    if message.dtype == dtypes.STRING:
        return [item.hex() for item in tensors.to_numpy(message).reshape(-1)]
    return tensors.to_torch(message).reshape(-1).tolist()


@AREA.handles("tensor_proto", "cases")
def _tensor(case: Case) -> None:
    value = case.take({"name", "kind", "hex", "dtype", "shape"}, {"values", "error", "carried_in"})
    assert value["kind"] == "decode"
    data = bytes.fromhex(value["hex"])
    message = from_bytes(tensor.TensorProto, data)
    assert message.dtype == value["dtype"]
    if "error" in value:
        assert value["error"] == "invalid"
        with pytest.raises(HedgerowError):
            tensors.to_value(message)
        return
    found = tensors.to_value(message)
    assert list(found.shape) == value["shape"]
    assert _values(message) == value["values"]
    if "carried_in" in value:
        in_content = {"tensor_content": True, "typed field": False}[value["carried_in"]]
        assert bool(message.tensor_content) is in_content
        again = tensors.to_message(found, compat=None if in_content else "typed")
        assert to_bytes(again) == data


def _tensor_message(value: dict[str, Any]) -> Any:
    """The tensor that a case describes, in the form it names."""
    forms = {"tensor_content", "string_val", "string_val_hex", "values", "form"}
    typed = {element.field for element in dtypes.ELEMENTS}
    value = take(value, {"dtype", "shape"}, forms | typed)
    form = value.get("form") or next(iter(set(value) - {"dtype", "shape"}))
    listed = next(value[key] for key in value if key not in ("dtype", "shape", "form"))
    if value["dtype"] == dtypes.STRING:
        items = [bytes.fromhex(item) for item in listed]
        return tensors.to_message(tensors.buffers.as_strings(items, tuple(value["shape"])))
    whole = torch.tensor(listed, dtype=dtypes.of_number(value["dtype"]).torch)
    compat = None if form == "tensor_content" else "typed"
    return tensors.to_message(whole.reshape(value["shape"]), compat=compat)


def _put_signatures(response: Any, metadata: dict[str, Any]) -> None:
    listed = take(metadata, {"signature_def"})["signature_def"]
    listed = take(listed, {"type_url", "signature_def_map"})
    found = tf_serving.SignatureDefMap()
    for name, described in listed["signature_def_map"].items():
        described = take(described, {"method_name", "inputs", "outputs"})
        signature = found.signature_def[name]
        signature.method_name = described["method_name"]
        for side in ("inputs", "outputs"):
            for alias, (tensor_name, dtype, shape) in described[side].items():
                info = getattr(signature, side)[alias]
                info.name, info.dtype = tensor_name, dtype
                for size in shape:
                    info.tensor_shape.dim.add(size=size)
    response.metadata["signature_def"].Pack(found, deterministic=True)
    assert response.metadata["signature_def"].type_url == listed["type_url"]


def _put_spec(spec: Any, value: dict[str, Any]) -> None:
    value = take(value, optional={"name", "version", "version_label", "signature_name"})
    if "version" in value:
        spec.version.value = value.pop("version")
        spec.version.SetInParent()
    for name, text in value.items():
        setattr(spec, name, text)


@AREA.handles("tf_serving_messages", "cases")
def _messages(case: Case) -> None:
    value = case.take({"name", "message", "fields", "hex_sorted_maps"})
    package, _, name = value["message"].rpartition(".")
    assert package == "tensorflow.serving"
    message = getattr(tf_serving, name)()
    for field, content in value["fields"].items():
        if field == "model_spec":
            _put_spec(message.model_spec, content)
        elif field in ("inputs", "outputs"):
            for alias, described in content.items():
                getattr(message, field)[alias].CopyFrom(_tensor_message(described))
        elif field == "metadata":
            _put_signatures(message, content)
        elif field == "model_version_status":
            message.model_version_status.extend(
                tf_serving.ModelVersionStatus(**status) for status in content
            )
        else:
            assert field in ("output_filter", "metadata_field"), field
            getattr(message, field).extend(content)
    _same(message, value["hex_sorted_maps"])


def _same(message: Any, wanted: str) -> None:
    """The message has these bytes, and is read from them."""
    assert to_bytes(message).hex() == wanted
    assert from_bytes(type(message), bytes.fromhex(wanted)) == message


@AREA.handles("agent_service_bytes", "cases")
def _agent(case: Case) -> None:
    value = case.take({"name", "message", "fields", "hex_sorted_maps"})
    package, _, name = value["message"].rpartition(".")
    assert package == "monolith.serving.agent_service"
    message = getattr(agent_service, name)()
    ParseDict(value["fields"], message)  # protobuf before 6 builds no map of messages from dicts
    _same(message, value["hex_sorted_maps"])


@AREA.handles("client_config_bytes", "cases")
def _config(case: Case) -> None:
    value = case.take({"name", "fields", "hex", "timeout_as_read"})
    _same(parameter_sync.ClientConfig(**value["fields"]), value["hex"])
    found = push.read_config(bytes.fromhex(value["hex"]))
    assert found.timeout_in_ms == value["timeout_as_read"]


@AREA.handles("push_result_json", "cases")
def _result(case: Case) -> None:
    value = case.take({"name", "fields", "hex", "json", "key_order"})
    result = parameter_sync.PushResult(**value["fields"])
    _same(result, value["hex"])
    text = push.result_json(result)
    assert json.loads(text) == value["json"]
    orders = [list(response) for response in json.loads(text).get("responses", [])]
    assert orders == value["key_order"]
    assert "\n" in text or not orders
