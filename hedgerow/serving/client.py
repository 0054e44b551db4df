"""A client of prediction servers: Hedgerow's, and any server of TensorFlow Serving's protocol."""

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
    """The state of a model version at a server; a version in state "AVAILABLE" answers."""

    version: int
    state: str
    error_code: str
    error_message: str


@dataclass(frozen=True, slots=True)
class ServedTensor:
    """An input or output of a signature, as a server describes it.

    A size of None is any size, a shape of None is any rank. A string tensor has dtype None.
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
    """A client of the server at `address`, "host:port". Safe to use from many threads.

    Tensors are sent as raw bytes. `compat="typed"` sends typed values, for old servers.

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
        """Returns all or the requested outputs by name; large ones are views of the answer's bytes.

        Raises ServingError, with the code of the server, or with DEADLINE_EXCEEDED after `timeout`
        seconds. None means no limit.
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
        """Returns the states of a model's versions at the server, or of one version."""
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
        """Returns the signatures of a model by name."""
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
        """Closes the connection; calls in flight fail with CANCELLED."""
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
    """Returns the method Predict."""
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
    """Returns the message of a Predict call; it names a version only if one is given.

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
    """Returns an output as a tensor; raises ServingError if it cannot be decoded."""
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
        spec.version.SetInParent()  # so that version 0 is sent


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
