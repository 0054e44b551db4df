"""What a server tells about its models: metadata, states, new lists of models, KServe, health."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import hedgerow as hr
from hedgerow.core.errors import InputError
from hedgerow.serving.metrics import ServerMetrics
from hedgerow.serving.model import Model, Signature, TensorSpec
from hedgerow.serving.registry import Registry
from hedgerow.serving.server import PredictionServer
from hedgerow.wire import infer_tensors, rpc
from hedgerow.wire.messages import kserve, tf_serving

from .serving import TIMEOUT_S, Caller, adding, refused, serving

X = torch.tensor([[1.0, 2.0]])


def _load(folder: Path, name: str) -> Any:
    if (folder / "broken").exists():
        raise InputError("this bundle is broken")
    return adding(int(folder.name), name)


@pytest.fixture(scope="module")
def server() -> Iterator[PredictionServer]:
    with serving(adding(3), adding(5)) as server:
        yield server


@pytest.fixture
def caller(server: PredictionServer) -> Iterator[Callable[..., Any]]:
    opened: list[Caller] = []

    def call(service: str, name: str, asked: Any) -> Any:
        opened.append(Caller(server.address, service))
        return opened[-1].call(name, asked)

    yield call
    for one in opened:
        one.channel.close()


def test_metadata_describes_every_signature(caller: Any) -> None:
    asked = tf_serving.GetModelMetadataRequest(metadata_field=["signature_def"])
    asked.model_spec.name = "m"
    response = caller(rpc.PREDICTION_SERVICE, "GetModelMetadata", asked)
    assert response.model_spec.version.value == 5
    packed = response.metadata["signature_def"]
    assert packed.type_url == "type.googleapis.com/tensorflow.serving.SignatureDefMap"
    described = tf_serving.SignatureDefMap.FromString(packed.value).signature_def
    assert sorted(described) == ["serving_default", "sum"]
    default = described["serving_default"]
    assert default.method_name == "tensorflow/serving/predict"
    assert [dim.size for dim in default.inputs["x"].tensor_shape.dim] == [-1, 2]
    assert (default.inputs["x"].dtype, described["sum"].outputs["s"].dtype) == (1, 9)


@pytest.mark.parametrize(
    ("spec", "fields", "code"),
    [
        (None, ["signature_def"], "INVALID_ARGUMENT"),
        ("m", [], "INVALID_ARGUMENT"),
        ("m", ["weights"], "INVALID_ARGUMENT"),
        ("n", ["signature_def"], "NOT_FOUND"),
    ],
)
def test_metadata_that_cannot_be_told(caller: Any, spec: Any, fields: Any, code: str) -> None:
    asked = tf_serving.GetModelMetadataRequest(metadata_field=fields)
    if spec:
        asked.model_spec.name = spec
    found, _ = refused(lambda: caller(rpc.PREDICTION_SERVICE, "GetModelMetadata", asked))
    assert found == code


def test_states_of_all_versions_and_of_one(caller: Any) -> None:
    asked = tf_serving.GetModelStatusRequest()
    asked.model_spec.name = "m"
    told = caller(rpc.MODEL_SERVICE, "GetModelStatus", asked).model_version_status
    assert [(one.version, one.state, one.status.error_code) for one in told] == [
        (5, 30, 0),
        (3, 30, 0),
    ]
    asked.model_spec.version.value = 3
    told = caller(rpc.MODEL_SERVICE, "GetModelStatus", asked).model_version_status
    assert [one.version for one in told] == [3]


@pytest.mark.parametrize(
    ("name", "version", "text"),
    [
        ("n", None, "Could not find any versions of model n"),
        ("m", 9, "Could not find version 9 of model m"),
    ],
)
def test_states_of_what_is_not_there(caller: Any, name: str, version: Any, text: str) -> None:
    asked = tf_serving.GetModelStatusRequest()
    asked.model_spec.name = name
    if version is not None:
        asked.model_spec.version.value = version
    found = refused(lambda: caller(rpc.MODEL_SERVICE, "GetModelStatus", asked))
    assert found == ("NOT_FOUND", text)


def _reload(*models: dict[str, Any]) -> Any:
    asked = tf_serving.ReloadConfigRequest()
    asked.config.model_config_list.SetInParent()
    for model in models:
        asked.config.model_config_list.config.add(**model)
    return asked


def test_a_new_list_of_models_is_served(tmp_path: Path) -> None:
    for folder in ("a/1", "a/2", "b/7", "c/1"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "c/1/broken").touch()
    registry = Registry(_load)
    with (
        PredictionServer(registry, reload_root=tmp_path) as server,
        Caller(server.address, rpc.MODEL_SERVICE) as caller,
    ):
        one = {"name": "a", "base_path": str(tmp_path / "a"), "version_labels": {"old": 1}}
        policy: Any = {"specific": {"versions": [1]}}
        answer = caller.call(
            "HandleReloadConfigRequest", _reload({**one, "model_version_policy": policy})
        )
        assert answer.status.error_code == 0
        assert registry.versions("a") == [1]
        with registry.find("a", label="old") as model:
            assert model.version == 1
        two = {"name": "b", "base_path": str(tmp_path / "b")}
        assert caller.call("HandleReloadConfigRequest", _reload(two)).status.error_code == 0
        assert (registry.versions("a"), registry.versions("b")) == ([], [7])
        three = {"name": "c", "base_path": str(tmp_path / "c")}
        answer = caller.call("HandleReloadConfigRequest", _reload(two, three))
        assert (answer.status.error_code, registry.versions("b")) == (9, [7])
        assert "model c" in answer.status.error_message
        moved = {"name": "b", "base_path": str(tmp_path / "e")}
        (tmp_path / "e" / "7").mkdir(parents=True)  # of the same number, and another model
        answer = caller.call("HandleReloadConfigRequest", _reload(moved, one))
        assert (answer.status.error_code, registry.versions("a")) == (9, [2])
        assert "version 7 of model b is served from" in answer.status.error_message
        outside = {"name": "d", "base_path": str(tmp_path / ".." / "d")}
        found = refused(lambda: caller.call("HandleReloadConfigRequest", _reload(outside)))
        assert found[0] == "PERMISSION_DENIED"
        assert registry.versions("b") == [7]
        empty = tf_serving.ReloadConfigRequest()
        found = refused(lambda: caller.call("HandleReloadConfigRequest", empty))
        assert found[0] == "INVALID_ARGUMENT"
    registry.close()


def test_a_server_takes_no_list_unless_it_is_allowed(caller: Any) -> None:
    found = refused(lambda: caller(rpc.MODEL_SERVICE, "HandleReloadConfigRequest", _reload()))
    assert found[0] == "PERMISSION_DENIED"


def test_kserve_answers_from_the_same_models(caller: Any) -> None:
    asked = kserve.ModelInferRequest(model_name="m", model_version="3", id="r1")
    infer_tensors.write_inputs(asked, {"x": X})
    asked.outputs.add(name="y")
    response = caller(rpc.KSERVE_SERVICE, "ModelInfer", asked)
    assert (response.model_version, response.id) == ("3", "r1")
    found = infer_tensors.read_outputs(response)
    assert list(found) == ["y"]
    assert torch.equal(torch.as_tensor(found["y"]), X + 3)


def test_kserve_runs_the_signature_that_a_parameter_names(caller: Any) -> None:
    asked = kserve.ModelInferRequest(model_name="m")
    asked.parameters["signature_name"].string_param = "sum"
    infer_tensors.write_inputs(asked, {"a": torch.tensor([1]), "b": torch.tensor([2])})
    response = caller(rpc.KSERVE_SERVICE, "ModelInfer", asked)
    assert torch.as_tensor(infer_tensors.read_outputs(response)["s"]).tolist() == [3]


@pytest.mark.parametrize(
    ("model", "version", "signature", "code"),
    [
        ("n", "", "", "NOT_FOUND"),
        ("m", "4", "", "NOT_FOUND"),
        ("m", "x", "", "INVALID_ARGUMENT"),
        ("m", "", "q", "FAILED_PRECONDITION"),
        ("m", "", "sum", "INVALID_ARGUMENT"),
    ],
)
def test_kserve_refuses(caller: Any, model: str, version: str, signature: str, code: str) -> None:
    asked = kserve.ModelInferRequest(model_name=model, model_version=version)
    asked.parameters["signature_name"].string_param = signature
    infer_tensors.write_inputs(asked, {"x": X})
    assert refused(lambda: caller(rpc.KSERVE_SERVICE, "ModelInfer", asked))[0] == code


def test_kserve_types_what_it_can() -> None:
    half = TensorSpec(torch.float16, (None,))
    same = Signature({"x": half}, {"y": half}, lambda inputs: {"y": inputs["x"]})
    with (
        serving(Model("m", 1, {"serving_default": same}), compat="typed") as server,
        Caller(server.address, rpc.KSERVE_SERVICE) as caller,
    ):
        asked = kserve.ModelInferRequest(model_name="m")
        value = torch.tensor([0.5], dtype=torch.float16)
        infer_tensors.write_inputs(asked, {"x": value})
        found = infer_tensors.read_outputs(caller.call("ModelInfer", asked))["y"]
    assert torch.equal(torch.as_tensor(found), value)


def test_a_version_of_any_length_is_no_fault_of_ours() -> None:
    registry = Registry()
    registry.add(adding(1))
    with (
        PredictionServer(registry, observe=ServerMetrics(registry).observe) as server,
        Caller(server.address, rpc.KSERVE_SERVICE) as caller,
    ):
        asked = kserve.ModelInferRequest(model_name="m", model_version="1" * 5000)
        code, text = refused(lambda: caller.call("ModelInfer", asked))
    assert (code, "not a whole number" in text) == ("INVALID_ARGUMENT", True)


def test_kserve_tells_states_and_shapes(caller: Any) -> None:
    def ask(name: str, asked: Any) -> Any:
        return caller(rpc.KSERVE_SERVICE, name, asked)

    assert ask("ServerLive", kserve.ServerLiveRequest()).live
    assert ask("ServerReady", kserve.ServerReadyRequest()).ready
    about = ask("ServerMetadata", kserve.ServerMetadataRequest())
    assert (about.name, about.version) == ("hedgerow", hr.__version__)
    assert ask("ModelReady", kserve.ModelReadyRequest(name="m")).ready
    assert ask("ModelReady", kserve.ModelReadyRequest(name="m", version="3")).ready
    assert not ask("ModelReady", kserve.ModelReadyRequest(name="m", version="4")).ready
    assert not ask("ModelReady", kserve.ModelReadyRequest(name="n")).ready
    told = ask("ModelMetadata", kserve.ModelMetadataRequest(name="m"))
    assert list(told.versions) == ["3", "5"]
    assert [(i.name, i.datatype, list(i.shape)) for i in told.inputs] == [("x", "FP32", [-1, 2])]


def test_health_follows_the_models_and_a_watcher_is_told(tmp_path: Path) -> None:
    states = health_pb2.HealthCheckResponse
    registry = Registry(_load)
    server = PredictionServer(registry).start()
    with grpc.insecure_channel(server.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        watched = stub.Watch(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        assert next(watched).status == states.NOT_SERVING
        registry.add(adding(1))
        assert next(watched).status == states.SERVING
        for service in ("", rpc.PREDICTION_SERVICE, rpc.KSERVE_SERVICE):
            asked = health_pb2.HealthCheckRequest(service=service)
            assert stub.Check(asked, timeout=TIMEOUT_S).status == states.SERVING
        registry.remove("m", 1)
        assert next(watched).status == states.NOT_SERVING
        registry.add(adding(2))
        assert next(watched).status == states.SERVING
        registry.watch("other", tmp_path)  # wanted, and nothing there
        assert next(watched).status == states.NOT_SERVING
        watched.cancel()
    registry.close()
    server.stop()


def test_reflection_tells_all_services(server: PredictionServer) -> None:
    asked = reflection_pb2.ServerReflectionRequest(list_services="")
    with grpc.insecure_channel(server.address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        (answer,) = stub.ServerReflectionInfo(iter([asked]), timeout=TIMEOUT_S)
    names = {service.name for service in answer.list_services_response.service}
    assert {
        rpc.PREDICTION_SERVICE,
        rpc.MODEL_SERVICE,
        rpc.KSERVE_SERVICE,
        "grpc.health.v1.Health",
    } <= names
