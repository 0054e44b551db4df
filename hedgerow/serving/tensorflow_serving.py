"""TensorFlow Serving's requests (predict, metadata, status, reload), answered for gRPC and REST."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import HedgerowError
from ..wire import buffers, dtypes, tensors
from ..wire.buffers import Array
from ..wire.codec import to_bytes
from ..wire.messages import error_codes, tf_serving
from ..wire.predict import PlainRequest, response_bytes, spec_bytes
from . import calls
from .folders import All, Latest, Policy, Specific
from .model import Model, ServingError, Signature, Tensors, TensorSpec

if TYPE_CHECKING:
    from torch import Tensor

    from ..wire.messages.tensor import TensorInfo, TensorProto
    from ..wire.messages.tf_serving import (
        GetModelMetadataRequest,
        GetModelMetadataResponse,
        GetModelStatusRequest,
        GetModelStatusResponse,
        ModelConfig,
        ModelSpec,
        PredictRequest,
        ReloadConfigRequest,
        ReloadConfigResponse,
        SignatureDefMap,
    )
    from ..wire.tensors import Compat
    from .registry import Lease, Registry


def predict(
    registry: Registry, request: PredictRequest | PlainRequest, *, compat: Compat = None
) -> bytes:
    """Runs a signature, and returns the bytes of a PredictResponse.

    Raises ServingError with TensorFlow Serving's code and text. Outputs have the form of the
    inputs: raw buffers if one input is raw, else typed values, which every client can read. With
    `compat="typed"` outputs are always typed.

    >>> import torch
    >>> from hedgerow.serving.model import Signature, TensorSpec
    >>> from hedgerow.serving.registry import Registry
    >>> from hedgerow.wire.messages import tf_serving
    >>> spec = TensorSpec(torch.float32, (None,))
    >>> double = Signature({"x": spec}, {"y": spec}, lambda inputs: {"y": inputs["x"] * 2})
    >>> registry = Registry()
    >>> registry.add(Model("twice", 1, {"serving_default": double}))
    >>> request = tf_serving.PredictRequest(model_spec={"name": "twice"})
    >>> tensors.fill(request.inputs["x"], torch.tensor([1.0, 2.0]))
    >>> response = tf_serving.PredictResponse.FromString(predict(registry, request))
    >>> tensors.to_torch(response.outputs["y"]), response.model_spec.version.value
    (tensor([2., 4.]), 1)
    """
    if isinstance(request, PlainRequest):
        answered = _predict_plain(registry, request, compat)
        if answered is not None:
            return answered
        request = request.message()
    with lease_of(registry, request.model_spec) as model:
        key, inputs, raw = _inputs(model, request)
        found = _outputs(model, key, inputs, request)
        form = compat or (None if raw else "typed")
        return response_bytes(found, spec_bytes(model.name, model.version, key), compat=form)


def _predict_plain(registry: Registry, request: PlainRequest, compat: Compat) -> bytes | None:
    """Does what predict() does, without protobuf objects; None if the inputs are not plain."""
    if not request.model:
        return None
    with registry.find(request.model, request.version) as model:
        key, signature = calls.signature_of(model, request.signature)
        tail = spec_bytes(model.name, model.version, key)
        if signature.answer_plain is not None and compat is None:
            answered = calls.attempt(key, signature.answer_plain, request, tail)
            if answered is not None:
                return answered
        inputs = _plain_inputs(signature, request)
        if inputs is None:
            return None
        found = calls.run(key, signature, inputs, signature.outputs)
        return response_bytes(found, tail, compat=compat)


def _plain_inputs(signature: Signature, request: PlainRequest) -> Tensors | None:
    if not request.inputs or len(request.inputs) != len(signature.inputs):
        return None  # without inputs none is raw, so the answer is typed
    found = {}
    for alias, spec in signature.inputs.items():
        element = dtypes.of_torch(spec.dtype)
        bits = request.array(alias, element, spec.shape)
        if bits is None:
            return None
        found[alias] = buffers.as_torch(element, bits, request.inputs[alias][1])
    return found


def outputs(model: Model, request: PredictRequest) -> Tensors:
    """Returns the outputs that a request asks for; the caller holds the model."""
    key, inputs, _ = _inputs(model, request)
    return _outputs(model, key, inputs, request)


def _outputs(model: Model, key: str, inputs: Tensors, request: PredictRequest) -> Tensors:
    signature = model.signatures[key]
    wanted = calls.wanted_outputs(signature, request.output_filter)
    return calls.run(key, signature, inputs, wanted)


def lease_of(registry: Registry, spec: ModelSpec) -> Lease:
    """Returns a lease of the model that a request names."""
    if not spec.name:
        raise ServingError("INVALID_ARGUMENT", "Missing ModelSpec: name the model in model_spec.")
    choice = spec.WhichOneof("version_choice")
    if choice is None:
        return registry.find(spec.name)
    if choice == "version":
        return registry.find(spec.name, spec.version.value)
    return registry.find(spec.name, label=spec.version_label)


def _inputs(model: Model, request: PredictRequest) -> tuple[str, Tensors, bool]:
    """Returns the requested signature's name, its inputs, and whether an input is a raw buffer."""
    key, signature = calls.signature_of(model, request.model_spec.signature_name)
    given, found, raw = request.inputs, {}, False
    calls.check_names(signature, given)
    for alias in signature.inputs:
        message = given[alias]
        raw = raw or bool(message.tensor_content)
        found[alias] = calls.checked(key, alias, signature, _read(message, alias))
    return key, found, raw


def _read(message: TensorProto, alias: str) -> Tensor | Array:
    try:
        return tensors.to_value(message, name=alias)
    except HedgerowError as error:
        raise ServingError("INVALID_ARGUMENT", f"a tensor cannot be read: {error}") from error


_FIELD = "signature_def"
_TYPE_URL = "type.googleapis.com/tensorflow.serving.SignatureDefMap"


def metadata(registry: Registry, request: GetModelMetadataRequest) -> GetModelMetadataResponse:
    """Returns the signatures of a model, for GetModelMetadata."""
    if not request.HasField("model_spec"):
        raise ServingError("INVALID_ARGUMENT", "Missing ModelSpec: name the model in model_spec.")
    if not request.metadata_field:
        raise ServingError(
            "INVALID_ARGUMENT", f"no metadata_field was asked for; ask for {_FIELD}."
        )
    for field in request.metadata_field:
        if field != _FIELD:
            raise ServingError(
                "INVALID_ARGUMENT", f"Metadata field {field} is not supported; ask for {_FIELD}."
            )
    with lease_of(registry, request.model_spec) as model:
        response = tf_serving.GetModelMetadataResponse()
        response.model_spec.name = model.name
        response.model_spec.version.value = model.version
        packed = response.metadata[_FIELD]
        packed.type_url, packed.value = _TYPE_URL, to_bytes(signature_map(model))
        return response


def signature_map(model: Model) -> SignatureDefMap:
    """Returns the signatures of a model in TensorFlow's form."""
    described = tf_serving.SignatureDefMap()
    for key, signature in model.signatures.items():
        definition = described.signature_def[key]
        definition.method_name = signature.method
        for alias, spec in signature.inputs.items():
            _describe(definition.inputs[alias], f"{key}_{alias}:0", spec)
        for alias, spec in signature.outputs.items():
            _describe(definition.outputs[alias], f"{key}_{alias}:0", spec)
    return described


def _describe(info: TensorInfo, name: str, spec: TensorSpec) -> None:
    info.name = name
    info.dtype = dtypes.of_torch(spec.dtype).number  # type: ignore[assignment]
    info.tensor_shape.SetInParent()
    for size in spec.shape:
        info.tensor_shape.dim.add(size=-1 if size is None else size)


def status(registry: Registry, request: GetModelStatusRequest) -> GetModelStatusResponse:
    """Returns the states of a model's versions."""
    spec = request.model_spec
    if not spec.name:
        raise ServingError("INVALID_ARGUMENT", "Missing ModelSpec: name the model in model_spec.")
    version = None
    choice = spec.WhichOneof("version_choice")
    if choice == "version":
        version = spec.version.value
    elif choice == "version_label":
        with lease_of(registry, spec) as model:
            version = model.version
    response = tf_serving.GetModelStatusResponse()
    for one in registry.status(spec.name, version):
        told = response.model_version_status.add(version=one.version, state=int(one.state))  # type: ignore[arg-type]
        told.status.error_code = error_codes.Code.Value(one.code)  # type: ignore[assignment]
        told.status.error_message = one.error
    return response


def reload(
    registry: Registry, request: ReloadConfigRequest, root: Path | None
) -> ReloadConfigResponse:
    """Watches the folders of the list, and removes watched models that are not in it.

    Folders must be inside `root`, because a caller makes the server read them. The whole list is
    checked before anything changes. The answer's status names the models that do not answer.
    """
    if root is None:
        raise ServingError(
            "PERMISSION_DENIED",
            "this server takes no list of models; start it with reload_root=FOLDER to allow it.",
        )
    if request.config.WhichOneof("config") != "model_config_list":
        raise ServingError("INVALID_ARGUMENT", "config has no model_config_list; send one.")
    configs = request.config.model_config_list.config
    wanted = [(config, _folder(config, root), _policy(config)) for config in configs]
    names = [config.name for config in configs]
    for name in names:
        if names.count(name) > 1:
            raise ServingError("INVALID_ARGUMENT", f"model {name!r} is in the list twice.")
    for name in set(registry.watched()) - set(names):
        registry.unwatch(name)
        registry.remove(name)
    faults = [_apply(registry, *one) for one in wanted]
    return _response("; ".join(fault for fault in faults if fault))


def _apply(registry: Registry, config: ModelConfig, base: Path, policy: Policy) -> str:
    """Watches one model and sets its labels; returns the error, or an empty string."""
    try:
        registry.watch(config.name, base, policy)
        if not registry.versions(config.name):
            return f"no version of model {config.name} answers"
        registry.set_labels(config.name, dict(config.version_labels))
    except HedgerowError as error:
        return str(error)
    return ""


def _response(fault: str) -> ReloadConfigResponse:
    response = tf_serving.ReloadConfigResponse()
    response.status.SetInParent()
    if fault:
        response.status.error_code = error_codes.FAILED_PRECONDITION
        response.status.error_message = fault
    return response


def _folder(config: ModelConfig, root: Path) -> Path:
    if not config.name:
        raise ServingError("INVALID_ARGUMENT", "a model of the list has no name; give it one.")
    try:
        folder = Path(config.base_path).resolve()
        inside = folder.is_relative_to(root.resolve())
    except (OSError, ValueError) as error:
        text = f"model {config.name}: base_path {config.base_path!r}: {error}"
        raise ServingError("INVALID_ARGUMENT", text) from error
    if not config.base_path or not inside:
        raise ServingError(
            "PERMISSION_DENIED",
            f"model {config.name}: base_path {config.base_path!r} is outside of the folder that "
            "this server may load from.",
        )
    return folder


def _policy(config: ModelConfig) -> Policy:
    given = config.model_version_policy
    choice = given.WhichOneof("policy_choice")
    try:
        if choice == "specific":
            return Specific(tuple(given.specific.versions))
        return All() if choice == "all" else Latest(given.latest.num_versions or 1)
    except HedgerowError as error:
        raise ServingError("INVALID_ARGUMENT", f"model {config.name}: {error}") from error
