"""The REST twin of the gRPC server: the same registry, answered in JSON; health and metrics."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import unquote, urlsplit

from ..wire import tensors
from ..wire.codec import from_bytes
from ..wire.messages import tf_serving
from . import about, answer, calls
from .endpoints import failure
from .exposure import check_exposed
from .http_server import DEFAULT_LIMITS, Answer, HttpServer, Limits
from .metrics import CONTENT_TYPE, Metrics
from .rest_json import read_json
from .sync_service import SyncService

if TYPE_CHECKING:
    from ..wire.messages.tf_serving import ModelSpec
    from .registry import Registry
    from .tls import Tls

_PATH = re.compile(
    r"/v1/models/(?P<name>[^/]+?)"
    r"(?:/versions/(?P<version>\d{1,18})|/labels/(?P<label>[^/:]+))?"
    r"(?P<verb>:predict|/metadata)?"
)
_METHODS = {":predict": "POST", "/metadata": "GET", None: "GET"}
STATUS = {
    "OK": 200,
    "CANCELLED": 499,
    "UNKNOWN": 500,
    "INVALID_ARGUMENT": 400,
    "DEADLINE_EXCEEDED": 504,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "PERMISSION_DENIED": 403,
    "RESOURCE_EXHAUSTED": 429,
    "FAILED_PRECONDITION": 400,
    "ABORTED": 409,
    "OUT_OF_RANGE": 400,
    "UNIMPLEMENTED": 501,
    "INTERNAL": 500,
    "UNAVAILABLE": 503,
    "DATA_LOSS": 500,
    "UNAUTHENTICATED": 401,
}


class RestServer:
    """Answers HTTP clients from a registry; `start()` it, or use it in a `with`.

    `hosts` are names under which clients reach it. An address that other machines reach needs
    `tls`, or `insecure`.

    >>> from hedgerow.serving.registry import Registry
    >>> from urllib.request import urlopen
    >>> with RestServer(Registry()) as server:
    ...     urlopen(f"http://{server.address}/metrics", timeout=10).status
    200
    """

    def __init__(
        self,
        registry: Registry,
        address: str = "127.0.0.1:0",
        *,
        tls: Tls | None = None,
        metrics: Metrics | None = None,
        limits: Limits = DEFAULT_LIMITS,
        hosts: Collection[str] = (),
        insecure: bool = False,
    ) -> None:
        check_exposed(address, encrypted=tls is not None, insecure=insecure)
        self._registry = registry
        self._sync = SyncService(registry)
        self._metrics = metrics or Metrics(registry)
        self._stopping = threading.Event()
        self._http = HttpServer(self._respond, address, tls=tls, limits=limits, hosts=hosts)
        self.address = self._http.address

    def start(self) -> Self:
        """Answers from now on."""
        self._http.start()
        return self

    def drain(self) -> None:
        """Says at /healthz that it goes away; requests are still answered."""
        self._stopping.set()

    def stop(self, grace_s: float = 5.0) -> None:
        """Takes no more requests and waits for those it has, for at most `grace_s` seconds."""
        self.drain()
        self._http.stop(grace_s)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _respond(self, method: str, target: str, body: bytes) -> Answer:
        try:
            path = urlsplit(target).path
        except ValueError as error:  # http://[
            return _json(400, {"error": f"Malformed request: {method} {target}: {error}"})
        if path == "/healthz":
            ready = self._registry.ready() and not self._stopping.is_set()
            return _json(200 if ready else 503, {"status": "SERVING" if ready else "NOT_SERVING"})
        if path == "/syncz":
            return _json(200, self._sync.status())
        if path in ("/metrics", "/monitoring/prometheus/metrics"):
            return Answer(200, self._metrics.text(), CONTENT_TYPE)
        found = _PATH.fullmatch(path)
        if found is None:
            return _json(404, {"error": f"Malformed request: {method} {path}"})
        verb = found["verb"]
        if method != _METHODS[verb]:
            return _json(
                405, {"error": f"Malformed request: {method} {path}: use {_METHODS[verb]}"}
            )
        return self._answer(verb, found.groupdict(), body)

    def _answer(self, verb: str | None, asked: Mapping[str, str | None], body: bytes) -> Answer:
        """Answers a request about a model, and counts it."""
        request: Any = _REQUESTS[verb]()
        _name(request.model_spec, asked)
        path, code, begin_s = f"/v1/models{verb or ''}", "OK", time.perf_counter()
        try:
            return _json(200, _ANSWERS[verb](self._registry, request, body))
        except Exception as error:
            code, text = failure(self._registry, path, error)
            return _json(STATUS[code], {"error": text})
        finally:
            self._metrics.observe(path, code, time.perf_counter() - begin_s, request)


def _name(spec: ModelSpec, asked: Mapping[str, str | None]) -> None:
    """The model of a path."""
    spec.name = unquote(asked["name"] or "")
    if asked["version"] is not None:
        spec.version.value = int(asked["version"])
        spec.version.SetInParent()
    elif asked["label"] is not None:
        spec.version_label = unquote(asked["label"])


def _predict(registry: Registry, request: Any, body: bytes) -> dict[str, Any]:
    """Runs a signature on JSON; its specs say which types the numbers have."""
    plain = read_json(body)
    spec = request.model_spec
    spec.signature_name = plain.signature
    with answer.lease_of(registry, spec) as model:  # one version for the types and the run
        _, signature = calls.signature_of(model, plain.signature)
        for name, value in plain.tensors(signature.inputs).items():
            tensors.fill(request.inputs[name], value, name=name)
        outputs = answer.outputs(model, request)
    return plain.answer({name: outputs[name] for name in signature.outputs})


def _status(registry: Registry, request: Any, body: bytes) -> dict[str, Any]:
    return _plain(about.status(registry, request))


def _metadata(registry: Registry, request: Any, body: bytes) -> dict[str, Any]:
    request.metadata_field.append("signature_def")
    response = about.metadata(registry, request)
    packed = from_bytes(tf_serving.SignatureDefMap, response.metadata["signature_def"].value)
    spec = {"name": response.model_spec.name, "signature_name": ""}
    return {
        "model_spec": {**spec, "version": str(response.model_spec.version.value)},
        "metadata": {"signature_def": _plain(packed)},
    }


_ANSWERS = {":predict": _predict, "/metadata": _metadata, None: _status}
_REQUESTS = {
    ":predict": lambda: tf_serving.PredictRequest(),
    "/metadata": lambda: tf_serving.GetModelMetadataRequest(),
    None: lambda: tf_serving.GetModelStatusRequest(),
}


def _plain(message: Any) -> dict[str, Any]:
    from google.protobuf.json_format import MessageToDict

    return MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def _json(status: int, plain: dict[str, Any]) -> Answer:
    return Answer(status, json.dumps(plain).encode())
