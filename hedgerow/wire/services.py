"""The gRPC services of our .proto files: the path and the messages of each method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .pool import Message

PREDICTION_SERVICE = "tensorflow.serving.PredictionService"
MODEL_SERVICE = "tensorflow.serving.ModelService"
KSERVE_SERVICE = "inference.GRPCInferenceService"
AGENT_SERVICE = "monolith.serving.agent_service.AgentService"


@dataclass(frozen=True, slots=True)
class Method:
    """One call of a service: all of ours send one message and get one."""

    path: str
    request: type[Message]
    response: type[Message]


def methods(service: str) -> dict[str, Method]:
    """The methods of a service by name.

    >>> methods(MODEL_SERVICE)["GetModelStatus"].path
    '/tensorflow.serving.ModelService/GetModelStatus'
    """
    from google.protobuf.message_factory import GetMessageClass

    from .pool import POOL

    return {
        method.name: Method(
            f"/{service}/{method.name}",
            GetMessageClass(method.input_type),
            GetMessageClass(method.output_type),
        )
        for method in POOL.FindServiceByName(service).methods
    }
