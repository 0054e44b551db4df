"""A client of prediction servers: ours, and any that speaks TensorFlow Serving's protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..core import checks
from ..core.errors import HedgerowError, InputError
from ..wire import dtypes, tensors
from ..wire.codec import from_bytes
from ..wire.messages import error_codes, tf_serving
from ..wire.rpc import MODEL_SERVICE, PREDICTION_SERVICE, Method, methods
from .channels import Channel, ClientTls
from .model import ServingError

if TYPE_CHECKING:
    from ..wire.buffers import Array
    from ..wire.messages.tensor import SignatureDef, TensorInfo
    from ..wire.messages.tf_serving import ModelSpec, PredictRequest
    from ..wire.tensors import Compat

TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """How a version of a model stands at a server: state "AVAILABLE" answers."""

    version: int
    state: str
    error_code: str
    error_message: str


@dataclass(frozen=True, slots=True)
class ServedTensor:
    """An input or output as a server tells it.

    None in the shape fits any size, None as the shape any rank; strings have no dtype of torch.
    """

    dtype: torch.dtype | None
    shape: tuple[int | None, ...] | None


@dataclass(frozen=True, slots=True)
class SignatureInfo:
    """The named inputs and outputs of a signature."""

    inputs: Mapping[str, ServedTensor]
    outputs: Mapping[str, ServedTensor]
    method: str


class PredictionClient:
    """Asks a server at `address`, "host:port"; threads may share a client.

    Tensors travel as raw content; `compat="typed"` sends typed values, which some old servers want.

    >>> with PredictionClient("127.0.0.1:1") as client:
    ...     try:
    ...         client.predict("entry", "serving_default", {"id": torch.tensor([7])})
    ...     except ServingError as error:
    ...         error.code
    'UNAVAILABLE'
    """

    def __init__(
        self, address: str, *, tls: ClientTls | None = None, compat: Compat = None
    ) -> None:
        tensors.check_compat(compat)
        self._channel = Channel(address, tls)
        self._compat: Compat = compat

    def predict(
        self,
        model: str,
        signature: str,
        inputs: Mapping[str, Tensor | Array],
        outputs: Sequence[str] | None = None,
        version: int | None = None,
        timeout: float | None = TIMEOUT_S,
    ) -> dict[str, Tensor]:
        """The outputs by name, all or those asked for; large ones are views of the answer's bytes.

        Raises ServingError, with the code of the server, or DEADLINE_EXCEEDED after `timeout`
        seconds; None waits for ever.
        """
        request = predict_request(
            model, signature, inputs, outputs or (), version, compat=self._compat
        )
        response = self._channel.call(predict_method(), request, _checked_timeout(timeout))
        return {
            name: decoded(name, value, model) for name, value in sorted(response.outputs.items())
        }

    def model_status(
        self, model: str, version: int | None = None, timeout: float | None = TIMEOUT_S
    ) -> list[VersionStatus]:
        """The versions of a model that the server knows, or one of them."""
        method = methods(MODEL_SERVICE)["GetModelStatus"]
        request = method.request()
        _fill_spec(request.model_spec, model, version)  # type: ignore[attr-defined]
        response = self._channel.call(method, request, _checked_timeout(timeout))
        return [
            VersionStatus(
                status.version,
                type(status).State.Name(status.state),
                _error_code(status.status.error_code),
                status.status.error_message,
            )
            for status in response.model_version_status
        ]

    def metadata(
        self, model: str, version: int | None = None, timeout: float | None = TIMEOUT_S
    ) -> dict[str, SignatureInfo]:
        """The signatures of a model by name."""
        method = methods(PREDICTION_SERVICE)["GetModelMetadata"]
        request = tf_serving.GetModelMetadataRequest(metadata_field=["signature_def"])
        _fill_spec(request.model_spec, model, version)
        response = self._channel.call(method, request, _checked_timeout(timeout))
        if "signature_def" not in response.metadata:
            raise ServingError("INTERNAL", f"the answer about {model!r} has no signature_def.")
        packed = response.metadata["signature_def"].value
        found = from_bytes(tf_serving.SignatureDefMap, packed).signature_def
        return {name: _signature_info(found[name]) for name in sorted(found)}

    def close(self) -> None:
        """Ends the connection; calls under way fail with CANCELLED."""
        self._channel.close()

    def __enter__(self) -> PredictionClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()


@cache
def predict_method() -> Method:
    """The one call that most clients make."""
    return methods(PREDICTION_SERVICE)["Predict"]


def predict_request(
    model: str,
    signature: str,
    inputs: Mapping[str, Tensor | Array],
    outputs: Sequence[str],
    version: int | None,
    *,
    compat: Compat = None,
) -> PredictRequest:
    """The message of a call; a version stands in it only where one is given.

    >>> request = predict_request("entry", "lookup", {"id": torch.tensor([7])}, ["id"], 0)
    >>> request.model_spec.HasField("version"), request.model_spec.version.value
    (True, 0)
    """
    request = tf_serving.PredictRequest(output_filter=list(outputs))
    _fill_spec(request.model_spec, model, version)
    request.model_spec.signature_name = signature
    for name, value in inputs.items():
        tensors.fill(request.inputs[name], value, compat=compat, name=name)
    return request


def decoded(name: str, message: object, model: str) -> Tensor:
    """An output as a tensor; one that cannot be read is an error of the server, by its name."""
    try:
        return tensors.to_torch(message, name=name)  # type: ignore[arg-type]
    except HedgerowError as error:
        text = f"output {name!r} of model {model!r} cannot be read: {error}"
        raise ServingError("INTERNAL", text) from error


def _fill_spec(spec: ModelSpec, model: str, version: int | None) -> None:
    if not isinstance(model, str) or not model:
        raise InputError(f"model is {model!r}; pass the name that the server knows it by.")
    spec.name = model
    if version is not None:
        spec.version.value = checks.count("version", version)
        spec.version.SetInParent()  # version 0 is a version, too


def _checked_timeout(timeout: float | None) -> float | None:
    if timeout is not None and not timeout > 0:
        raise InputError(f"timeout is {timeout!r}; it is a number of seconds above 0, or None.")
    return timeout


def _error_code(number: int) -> str:
    return error_codes.Code.Name(number)  # type: ignore[arg-type]


def _signature_info(message: SignatureDef) -> SignatureInfo:
    return SignatureInfo(
        {name: _tensor_info(message.inputs[name]) for name in sorted(message.inputs)},
        {name: _tensor_info(message.outputs[name]) for name in sorted(message.outputs)},
        message.method_name,
    )


def _tensor_info(message: TensorInfo) -> ServedTensor:
    shape = message.tensor_shape
    sizes = tuple(None if dim.size < 0 else dim.size for dim in shape.dim)
    dtype = None if message.dtype == dtypes.STRING else dtypes.of_number(message.dtype).torch
    return ServedTensor(dtype, None if shape.unknown_rank else sizes)
