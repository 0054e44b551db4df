"""The answer to a Predict request, by TensorFlow Serving's rules, for gRPC and REST alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.errors import HedgerowError
from ..wire import buffers, dtypes, tensors
from ..wire.buffers import Array
from ..wire.plain_request import PlainRequest
from ..wire.predict_response import response_bytes, spec_bytes
from . import calls
from .model import Model, ServingError, Signature, Tensors

if TYPE_CHECKING:
    from torch import Tensor

    from ..wire.messages.tensor import TensorProto
    from ..wire.messages.tf_serving import ModelSpec, PredictRequest
    from ..wire.tensors import Compat
    from .registry import Registry
    from .versions import Lease


def predict(
    registry: Registry, request: PredictRequest | PlainRequest, *, compat: Compat = None
) -> bytes:
    """Runs a signature; the bytes of a PredictResponse.

    Raises ServingError with the code and the text that clients know. Outputs travel in the form of
    the inputs: as raw buffers where one input did, else as typed values, which every client reads.
    With `compat="typed"` they are typed whatever came.

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
    """As predict(), without a parser's objects; None where the inputs are not what is wanted."""
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
    """The outputs that a request asks for, of a model that the caller holds."""
    key, inputs, _ = _inputs(model, request)
    return _outputs(model, key, inputs, request)


def _outputs(model: Model, key: str, inputs: Tensors, request: PredictRequest) -> Tensors:
    signature = model.signatures[key]
    wanted = calls.wanted_outputs(signature, request.output_filter)
    return calls.run(key, signature, inputs, wanted)


def lease_of(registry: Registry, spec: ModelSpec) -> Lease:
    """A lease of the model that a request names."""
    if not spec.name:
        raise ServingError("INVALID_ARGUMENT", "Missing ModelSpec: name the model in model_spec.")
    choice = spec.WhichOneof("version_choice")
    if choice is None:
        return registry.find(spec.name)
    if choice == "version":
        return registry.find(spec.name, spec.version.value)
    return registry.find(spec.name, label=spec.version_label)


def _inputs(model: Model, request: PredictRequest) -> tuple[str, Tensors, bool]:
    """The signature asked for, its inputs, and whether one of them came as a raw buffer."""
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
