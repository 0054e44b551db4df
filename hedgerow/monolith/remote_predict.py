"""Monolith's `remote_predict`: calls one replica of a served model, with Monolith's arguments."""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..core import checks
from ..core.errors import InputError
from ..serving.channels import Channel, PendingCall, Replicas
from ..serving.client import decoded, predict_method, predict_request
from ..serving.model import DEFAULT_SIGNATURE, ServingError
from ..serving.request_context import shortest_s

if TYPE_CHECKING:
    from ..wire.messages.tf_serving import PredictRequest


class RequestError(ServingError, InputError):
    """The arguments are invalid. Nothing was sent."""

    def __init__(self, text: str) -> None:
        super().__init__("INVALID_ARGUMENT", text)


@dataclass(frozen=True, slots=True)
class RemoteAnswer:
    """The status code of a call ("OK" or an error code), its text, and the outputs in order."""

    code: str
    message: str
    outputs: list[Tensor]


def remote_predict(
    input_tensor_alias: Sequence[str],
    input_tensors: Sequence[Tensor],
    output_tensor_alias: Sequence[str],
    model_name: str | None,
    task: int,
    old_model_name: str | None,
    model_version: int = -1,
    fail_op_on_rpc_error: bool = True,
    max_rpc_deadline_millis: int = 30,
    output_types: Sequence[torch.dtype] | None = None,
    name: str | None = None,
    signature_name: str = DEFAULT_SIGNATURE,
) -> list[Tensor]:
    """Returns the outputs of a model from one of its replicas, in the order of their aliases.

    The replicas are those of the surrounding `with Replicas(...)`. A version below 0 requests the
    newest. A call ends after `max_rpc_deadline_millis`, or earlier if the surrounding deadline is
    shorter. With `fail_op_on_rpc_error=False` a failed call returns empty outputs without
    dimensions. `name` is ignored.
    """
    return remote_answer(
        input_tensor_alias,
        input_tensors,
        output_tensor_alias,
        model_name,
        task,
        old_model_name,
        model_version,
        fail_op_on_rpc_error,
        max_rpc_deadline_millis,
        output_types,
        name,
        signature_name,
    ).outputs


def remote_answer(
    input_tensor_alias: Sequence[str],
    input_tensors: Sequence[Tensor],
    output_tensor_alias: Sequence[str],
    model_name: str | None,
    task: int,
    old_model_name: str | None,
    model_version: int = -1,
    fail_op_on_rpc_error: bool = True,
    max_rpc_deadline_millis: int = 30,
    output_types: Sequence[torch.dtype] | None = None,
    name: str | None = None,
    signature_name: str = DEFAULT_SIGNATURE,
) -> RemoteAnswer:
    """Like `remote_predict`, but also returns the status of the call."""
    if model_name is None:
        raise InputError("model_name must be specified.")
    _check_counts("input_tensor_alias", input_tensor_alias, "input_tensors", input_tensors)
    if len({*input_tensor_alias}) < len(input_tensor_alias):
        raise RequestError(f"input_tensor_alias {[*input_tensor_alias]} names one input twice.")
    if output_types is not None:
        _check_counts("output_tensor_alias", output_tensor_alias, "output_types", output_types)
    millis = checks.count("max_rpc_deadline_millis", max_rpc_deadline_millis, least=1)
    replicas = Replicas.current()
    key, served = (
        (model_name, model_name)
        if replicas is None
        else replicas.target(model_name, task, old_model_name)
    )
    request = predict_request(
        served,
        signature_name,
        dict(zip(input_tensor_alias, input_tensors, strict=True)),
        output_tensor_alias,
        model_version if model_version >= 0 else None,
        compat="typed",
    )
    try:
        response = _ask(replicas, key, request, shortest_s(millis / 1000))
    except ServingError as error:
        if fail_op_on_rpc_error:
            raise
        types = output_types or [torch.float32] * len(output_tensor_alias)
        empty = [torch.zeros((), dtype=dtype) for dtype in types]
        return RemoteAnswer(error.code, str(error), empty)
    return RemoteAnswer("OK", "", _outputs(response, output_tensor_alias, output_types, served))


def _check_counts(one: str, some: Sequence[object], other: str, others: Sequence[object]) -> None:
    if len(some) != len(others):
        raise RequestError(
            f"{one} has {len(some)} names and {other} has {len(others)}; pass one for each."
        )


def _ask(replicas: Replicas | None, key: str, request: PredictRequest, timeout_s: float) -> Any:
    """Returns the answer of one replica, or with hedging the first answer of two."""
    addresses = [] if replicas is None else replicas.choose(key, 2 if _hedges(replicas) else 1)
    if replicas is None or not addresses:
        spec = request.model_spec
        raise ServingError(
            "UNAVAILABLE",
            f"no remote server available for model {spec.name!r}, signature "
            f"{spec.signature_name!r}: no address is known under {key!r}.",
        )
    if timeout_s <= 0:
        raise ServingError("DEADLINE_EXCEEDED", "the surrounding deadline has passed.")
    with replicas.channels(addresses) as channels:
        if len(channels) == 1 or replicas.hedge_after_s is None:
            return channels[0].call(predict_method(), request, timeout_s)
        return _first_answer(channels, request, timeout_s, replicas.hedge_after_s)


def _hedges(replicas: Replicas) -> bool:
    return replicas.hedge_after_s is not None


def _first_answer(
    channels: Sequence[Channel], request: PredictRequest, timeout_s: float, hedge_after_s: float
) -> Any:
    """Calls the first replica, and the second if the first is late or unavailable."""
    done: queue.SimpleQueue[PendingCall] = queue.SimpleQueue()
    begin_s, failed = time.monotonic(), 0
    asked: list[PendingCall] = []
    try:
        while True:
            if len(asked) < len(channels):
                left_s = max(timeout_s - (time.monotonic() - begin_s), 0.001)
                pending = channels[len(asked)].begin(predict_method(), request, left_s)
                asked.append(pending)
                pending.when_done(done.put)
            is_last = len(asked) == len(channels)
            try:
                return done.get(timeout=None if is_last else hedge_after_s).answer()
            except queue.Empty:
                continue
            except ServingError as error:
                failed += 1
                if failed == len(channels) or (not is_last and error.code != "UNAVAILABLE"):
                    raise
    finally:
        for pending in asked:
            pending.cancel()


def _outputs(
    response: Any,
    aliases: Sequence[str],
    types: Sequence[torch.dtype] | None,
    model: str,
) -> list[Tensor]:
    """Returns the outputs by alias. A missing output or a wrong dtype is an error of the server."""
    found = []
    for place, alias in enumerate(aliases):
        if alias not in response.outputs:
            raise ServingError("INTERNAL", f"the answer of {model!r} has no output {alias!r}.")
        value = decoded(alias, response.outputs[alias], model)
        if types is not None and value.dtype != types[place]:
            text = f"output {alias!r} of {model!r} is {value.dtype}, and not {types[place]}."
            raise ServingError("INTERNAL", text)
        found.append(value)
    return found
