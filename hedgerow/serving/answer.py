"""The answer to a Predict request, by TensorFlow Serving's rules, for gRPC and REST alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.errors import HedgerowError
from ..wire import tensors
from ..wire.buffers import Array
from ..wire.messages import tf_serving
from . import calls
from .model import ServingError

if TYPE_CHECKING:
    from torch import Tensor

    from ..wire.messages.tf_serving import ModelSpec, PredictRequest, PredictResponse
    from ..wire.tensors import Compat
    from .registry import Registry
    from .versions import Lease


def predict(
    registry: Registry, request: PredictRequest, *, compat: Compat = None
) -> PredictResponse:
    """Runs a signature; raises ServingError with the code and the text that clients know.

    Outputs travel as raw buffers, or with `compat="typed"` as typed values.

    >>> import torch
    >>> from hedgerow.serving.model import Model, Signature, TensorSpec
    >>> from hedgerow.serving.registry import Registry
    >>> spec = TensorSpec(torch.float32, (None,))
    >>> double = Signature({"x": spec}, {"y": spec}, lambda inputs: {"y": inputs["x"] * 2})
    >>> registry = Registry()
    >>> registry.add(Model("twice", 1, {"serving_default": double}))
    >>> request = tf_serving.PredictRequest(model_spec={"name": "twice"})
    >>> tensors.fill(request.inputs["x"], torch.tensor([1.0, 2.0]))
    >>> response = predict(registry, request)
    >>> tensors.to_torch(response.outputs["y"]), response.model_spec.version.value
    (tensor([2., 4.]), 1)
    """
    with lease_of(registry, request.model_spec) as model:
        key, signature = calls.signature_of(model, request.model_spec.signature_name)
        calls.check_names(signature, request.inputs)
        wanted = calls.wanted_outputs(signature, request.output_filter)
        inputs = calls.checked(key, signature, _read(request))
        outputs = calls.run(key, signature, inputs, wanted)
        response = tf_serving.PredictResponse()
        for alias, value in outputs.items():
            tensors.fill(response.outputs[alias], value, compat=compat, name=alias)
        spec = response.model_spec
        spec.name, spec.signature_name = model.name, key
        spec.version.value = model.version
        return response


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


def _read(request: PredictRequest) -> dict[str, Tensor | Array]:
    try:
        return {a: tensors.to_value(value, name=a) for a, value in request.inputs.items()}
    except HedgerowError as error:
        raise ServingError("INVALID_ARGUMENT", f"a tensor cannot be read: {error}") from error
