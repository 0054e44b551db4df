"""What a server tells about its models: signatures, and the states of versions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..wire import dtypes
from ..wire.codec import to_bytes
from ..wire.messages import error_codes, tf_serving
from .answer import lease_of
from .model import Model, ServingError, TensorSpec

if TYPE_CHECKING:
    from ..wire.messages.tensor import TensorInfo
    from ..wire.messages.tf_serving import (
        GetModelMetadataRequest,
        GetModelMetadataResponse,
        GetModelStatusRequest,
        GetModelStatusResponse,
        SignatureDefMap,
    )
    from .registry import Registry

_FIELD = "signature_def"
_TYPE_URL = "type.googleapis.com/tensorflow.serving.SignatureDefMap"


def metadata(registry: Registry, request: GetModelMetadataRequest) -> GetModelMetadataResponse:
    """The signatures of a model."""
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
    """The signatures of a model, as TensorFlow describes them."""
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
    """The states of the versions of a model."""
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
