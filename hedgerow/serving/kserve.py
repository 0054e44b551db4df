"""The Open Inference Protocol (KServe v2) for the models of a registry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..core.errors import HedgerowError
from ..wire import dtypes, infer_tensors
from ..wire.messages import kserve
from . import calls
from .model import DEFAULT_SIGNATURE, ServingError, Tensors, TensorSpec

if TYPE_CHECKING:
    from ..wire.messages.kserve import (
        ModelInferRequest,
        ModelInferResponse,
        ModelMetadataRequest,
        ModelMetadataResponse,
        ModelReadyRequest,
    )
    from ..wire.tensors import Compat
    from .registry import Lease, Registry

SIGNATURE_PARAMETER = "signature_name"  # a request parameter; the protocol has no signatures


def ready(registry: Registry, request: ModelReadyRequest) -> bool:
    """Returns whether a model, or the requested version of it, answers; False if unknown."""
    versions = registry.versions(request.name)
    version = _version(request.version)
    return bool(versions) if version is None else version in versions


def metadata(registry: Registry, request: ModelMetadataRequest) -> ModelMetadataResponse:
    """Returns the inputs and outputs of a model's default signature, or of its only one."""
    with _lease(registry, request.name, request.version) as model:
        only = next(iter(model.signatures), "") if len(model.signatures) == 1 else ""
        key = DEFAULT_SIGNATURE if DEFAULT_SIGNATURE in model.signatures else only
        response = kserve.ModelMetadataResponse(name=model.name, platform="hedgerow")
        response.versions.extend(str(number) for number in registry.versions(model.name))
        if key:
            _describe(response.inputs, model.signatures[key].inputs)
            _describe(response.outputs, model.signatures[key].outputs)
        return response


def _describe(described: object, specs: Mapping[str, TensorSpec]) -> None:
    for name, spec in specs.items():
        element = dtypes.of_torch(spec.dtype)
        datatype = element.kserve or element.name.upper()  # our own name if the protocol has none
        shape = [-1 if size is None else size for size in spec.shape]
        described.add(name=name, datatype=datatype, shape=shape)  # type: ignore[attr-defined]


def infer(
    registry: Registry, request: ModelInferRequest, *, compat: Compat = None
) -> ModelInferResponse:
    """Runs the default signature, or the one that the parameter `signature_name` names."""
    with _lease(registry, request.model_name, request.model_version) as model:
        asked = ""
        if SIGNATURE_PARAMETER in request.parameters:
            asked = request.parameters[SIGNATURE_PARAMETER].string_param
        key, signature = calls.signature_of(model, asked)
        try:
            given = infer_tensors.read_inputs(request)
        except HedgerowError as error:
            raise ServingError("INVALID_ARGUMENT", f"a tensor cannot be read: {error}") from error
        calls.check_names(signature, given)
        wanted = calls.wanted_outputs(signature, [output.name for output in request.outputs])
        inputs = {
            alias: calls.checked(key, alias, signature, given[alias]) for alias in signature.inputs
        }
        outputs = calls.run(key, signature, inputs, wanted)
        response = kserve.ModelInferResponse(
            model_name=model.name, model_version=str(model.version), id=request.id
        )
        form = _form(request, outputs, compat)
        infer_tensors.write_outputs(response, outputs, compat=form)
        return response


def _form(request: ModelInferRequest, outputs: Tensors, compat: Compat) -> Compat:
    """Returns `compat`, else the inputs' form; raw if an output has no typed form."""
    if compat is None and (request.raw_input_contents or not request.inputs):
        return None
    return "typed" if all(dtypes.of_torch(v.dtype).contents for v in outputs.values()) else None


def _lease(registry: Registry, name: str, version: str) -> Lease:
    return registry.find(name, _version(version))


def _version(text: str) -> int | None:
    """Returns the requested version; None means the newest."""
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ServingError("INVALID_ARGUMENT", f"version {text[:40]!r} is not a whole number.")
    return int(text)
