"""The replicas of the original's sequential rule: one connection each, replaced by each config."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..core.errors import HedgerowError, MissingExtraError
from ..wire import push
from ..wire.codec import to_bytes
from ..wire.messages import parameter_sync
from ..wire.services import PREDICTION_SERVICE, methods
from .push_metrics import UNKNOWN, PushMetrics, PushTags

if TYPE_CHECKING:
    from ..wire.messages.parameter_sync import ClientConfig, PushRequest, PushResponse

MAX_MESSAGE_BYTES = 32 << 20  # each way, as in the original
_INVALID_ARGUMENT = 3


@dataclass(frozen=True, slots=True)
class Stands:
    """Where a replica stands, for metrics."""

    idc: str = UNKNOWN
    replica_id: int = -1


class StrictTargets:
    """Connections by address. Used by one thread at a time; `replace` and pushes never overlap.

    >>> targets = StrictTargets()
    >>> targets.replace(parameter_sync.ClientConfig(targets=["b:1", "a:1", "b:1"]))
    >>> targets.addresses
    ('a:1', 'b:1')
    >>> targets.close()
    """

    def __init__(self, metrics: PushMetrics | None = None) -> None:
        self.metrics = metrics or PushMetrics()
        self._channels: dict[str, Any] = {}
        self._stands: dict[str, Stands] = {}

    @property
    def addresses(self) -> tuple[str, ...]:
        """Those that are pushed to, in the order in which they are."""
        return tuple(sorted(self._channels))

    def stands(self, address: str) -> Stands:
        """What the config told of an address, if it told as much of all of them."""
        return self._stands.get(address, Stands())

    def replace(self, config: ClientConfig) -> None:
        """Goes on with a config's targets: gone ones are closed, kept ones stay connected."""
        wanted = set(config.targets)
        for address in sorted(self._channels.keys() - wanted):
            self._channels.pop(address).close()
        for address in sorted(wanted - self._channels.keys()):
            self._channels[address] = _channel(address)
        self._stands = {}
        if len(config.targets) == len(config.targets_extra_info):
            for address, info in zip(config.targets, config.targets_extra_info, strict=True):
                self._stands.setdefault(address, _stands(info))  # the first of equals counts

    def push(self, address: str, part: PushRequest) -> PushResponse:
        """Sends one part, waits for the end of it at most its timeout, and tells how it went."""
        if not push.tables_of(part):
            return parameter_sync.PushResponse(target=address)
        try:
            data = to_bytes(push.to_predict(part, compat="typed"))
        except HedgerowError as error:
            return _response(_INVALID_ARGUMENT, str(error), address, 0)
        began = time.perf_counter()
        code, text = _call(self._channels[address], data, part.timeout_in_ms / 1000)
        rows = 0 if code else push.row_count(part)
        stands = self.stands(address)
        tags = PushTags(
            part.model_name,
            part.signature_name,
            address,
            "KO" if code else "OK",
            stands.idc,
            str(stands.replica_id),
        )
        micros = 1e6 * (time.perf_counter() - began)
        self.metrics.pushed(tags, micros=micros, fids=push.row_count(part), sent_bytes=len(data))
        return _response(code, text, address, rows)

    def close(self) -> None:
        """Ends all connections."""
        self.replace(parameter_sync.ClientConfig())


def _stands(info: ClientConfig.TargetExtraInfo) -> Stands:
    return Stands(f"{info.idc}:{info.cluster}" if info.idc else UNKNOWN, info.replica_id)


def _channel(address: str) -> Any:
    try:
        import grpc
    except ImportError as error:
        raise MissingExtraError(
            f"pushing rows needs grpcio ({error}); pip install hedgerow[serving]."
        ) from error
    options = (
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    )
    return grpc.insecure_channel(address, options=options)


def _call(channel: Any, data: bytes, timeout_s: float) -> tuple[int, str]:
    """The status of a Predict call; what it answers is not read."""
    import grpc

    try:
        channel.unary_unary(methods(PREDICTION_SERVICE)["Predict"].path)(data, timeout=timeout_s)
    except grpc.RpcError as error:
        failed: Any = error
        return failed.code().value[0], failed.details() or ""
    return 0, ""


def _response(code: int, text: str, address: str, rows: int) -> PushResponse:
    return parameter_sync.PushResponse(
        status_code=code, error_message=text, target=address, update_num=rows
    )
