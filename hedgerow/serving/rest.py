"""TensorFlow Serving's REST interface: JSON forms of requests and answers, and the HTTP server."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import unquote, urlsplit

import numpy as np
import torch
from torch import Tensor

from ..core.errors import HedgerowError
from ..wire import dtypes, tensors
from ..wire.buffers import Array
from ..wire.codec import from_bytes
from ..wire.messages import tf_serving
from . import calls, tensorflow_serving
from .arguments import LENGTHS, WEIGHTS
from .endpoints import failure
from .http_server import DEFAULT_LIMITS, HttpAnswer, HttpLimits, HttpServer
from .live_model import SyncService
from .metrics import CONTENT_TYPE, ServerMetrics
from .model import ServingError, Tensors, TensorSpec
from .tls import check_exposed

if TYPE_CHECKING:
    from ..wire.messages.tf_serving import ModelSpec
    from .registry import Registry
    from .tls import Tls


Specs = Mapping[str, TensorSpec]


@dataclass(frozen=True, slots=True)
class JsonRequest:
    """A request body: signature name, and values by rows ("instances") or columns ("inputs")."""

    signature: str
    by_rows: bool
    values: Any

    def tensors(self, specs: Specs) -> dict[str, Tensor | Array]:
        """Returns the inputs by name, including names that the signature does not have.

        A feature with an input of lengths may be given as one list of ids per sample; its lengths
        are then counted. Strings stay strings: the server of the model hashes them.
        """
        columns = _columns(self.values, specs) if self.by_rows else self._by_name(specs)
        columns = _counted(columns, specs)
        return {
            _text(name): _tensor(name, value, specs.get(name)) for name, value in columns.items()
        }

    def _by_name(self, specs: Specs) -> dict[str, Any]:
        if isinstance(self.values, dict):
            return self.values
        return {_only(specs): self.values}

    def answer(self, outputs: Tensors) -> dict[str, Any]:
        """Returns the outputs in the form of the request."""
        lists = {name: value.tolist() for name, value in outputs.items()}
        if not self.by_rows:
            return {"outputs": next(iter(lists.values())) if len(lists) == 1 else lists}
        sizes = {value.shape[0] if value.dim() else None for value in outputs.values()}
        if len(sizes) != 1 or None in sizes:
            raise _wrong(
                "the outputs do not have one row for each instance; ask by columns: "
                'send "inputs" in place of "instances".'
            )
        if len(lists) == 1:
            return {"predictions": next(iter(lists.values()))}
        rows = zip(*lists.values(), strict=True)
        return {"predictions": [dict(zip(lists, row, strict=True)) for row in rows]}


def read_json(body: bytes) -> JsonRequest:
    """Returns the request in a body.

    >>> read_json(b'{"instances": [[1.0]]}').by_rows
    True
    """
    try:
        plain = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _wrong(f"JSON Parse error: {error}; send one JSON object.") from error
    if not isinstance(plain, dict):
        raise _wrong(f"the body is a {type(plain).__name__}; send one JSON object.")
    forms = [form for form in ("instances", "inputs") if form in plain]
    if len(forms) != 1:
        raise _wrong('the object must have either "instances" (rows) or "inputs" (columns).')
    signature = plain.get("signature_name", "")
    if not isinstance(signature, str):
        raise _wrong(f"signature_name is {signature!r}; it must be a string.")
    return JsonRequest(_text(signature), forms[0] == "instances", plain[forms[0]])


def _columns(rows: Any, specs: Specs) -> dict[str, Any]:
    """Returns rows as columns: objects by their names, other values for the only input."""
    if not isinstance(rows, list) or not rows:
        raise _wrong('"instances" must be a list with at least one instance.')
    if not isinstance(rows[0], dict):
        return {_only(specs): rows}
    names = rows[0].keys()
    for place, row in enumerate(rows):
        if not isinstance(row, dict) or row.keys() != names:
            raise _wrong(f"instance {place} does not have the names of instance 0.")
    return {name: [row[name] for row in rows] for name in names}


def _only(specs: Specs) -> str:
    """Returns the only input that may be given without its name; inputs of lengths do not count."""
    given = [name for name in specs if name.removesuffix(LENGTHS) not in {*specs} - {name}]
    if len(given) != 1:
        names = ", ".join(sorted(specs)) or "none"
        raise _wrong(f"the signature has {len(specs)} inputs ({names}); give values by name.")
    return given[0]


def _counted(columns: dict[str, Any], specs: Specs) -> dict[str, Any]:
    """Returns the columns with features that are lists per sample split into ids and lengths."""
    found = dict(columns)
    for name, value in columns.items():
        lengths, weights = name + LENGTHS, name + WEIGHTS
        if name not in specs or lengths not in specs or lengths in columns:
            continue
        found[name], found[lengths] = _flat(name, value)
        if weights in columns:
            found[weights], sizes = _flat(weights, columns[weights])
            if sizes != found[lengths]:
                raise _wrong(f"{weights} must have one number for each id of {name}.")
    return found


def _flat(name: str, samples: Any) -> tuple[list[Any], list[int]]:
    """Returns all values, sample after sample, and the number of values per sample."""
    if not isinstance(samples, list):
        raise _wrong(f"input {name} must be a list with one list of ids for each sample.")
    values: list[Any] = []
    lengths: list[int] = []
    for sample in samples:
        given = sample if isinstance(sample, list) else [] if sample is None else [sample]
        if any(isinstance(one, list) for one in given):
            raise _wrong(f"input {name} is nested too deeply; give one list of ids a sample.")
        values += given
        lengths.append(len(given))
    return values, lengths


def _tensor(name: str, value: Any, spec: TensorSpec | None) -> Tensor | Array:
    """Returns a tensor of the input's dtype, without clipping, or an array of strings."""
    array = _array(name, value)
    dtype = torch.float32 if spec is None else spec.dtype
    if array.dtype == object:
        if dtype == torch.int64:
            return array
        raise _wrong(f"input {name} must be numbers that fit {dtype}; it has strings.")
    if not array.size:
        return torch.empty(array.shape, dtype=dtype)
    allowed = "b" if dtype == torch.bool else "iuf" if dtype.is_floating_point else "iu"
    if array.dtype.kind not in allowed:
        raise _wrong(f"input {name} must be numbers that fit {dtype}, in lists of equal lengths.")
    if dtype.is_floating_point:
        return torch.from_numpy(array.astype(np.float64)).to(dtype)
    return torch.from_numpy(_integers(name, array, dtype))


def _array(name: str, value: Any) -> Any:
    """Returns nested lists as an array.

    Types are checked before numpy chooses one. Else one long string among numbers would turn all
    of them into strings of its length, and a short request could fill the memory.
    """
    try:
        objects = np.array(value, dtype=object)
    except (ValueError, RecursionError) as error:
        raise _wrong(f"input {name} is nested too deeply: {error}") from error
    flat = objects.ravel().tolist()
    kinds = set(map(type, flat))
    if list in kinds:
        raise _wrong(f"input {name}: rows of different lengths, or nested too deeply.")
    if kinds == {str}:
        for one in flat:
            _text(one)
        return objects
    if not kinds <= {int, float, bool}:
        raise _wrong(f"input {name} must be numbers, or ids that are strings, in lists.")
    return np.array(flat).reshape(objects.shape)


def _text(name: str) -> str:
    """Returns the string; raises if UTF-8 cannot encode it (JSON allows lone surrogates)."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise _wrong(f"the name {name!r} is no text: {error}; send UTF-8.") from error
    return name


def _integers(name: str, array: Any, dtype: torch.dtype) -> Any:
    if dtype == torch.bool:
        return array
    try:
        wanted = np.dtype(dtypes.of_torch(dtype).bits)
    except HedgerowError as error:
        raise _wrong(f"input {name}: {error}") from error
    if wanted.kind not in "iu":
        raise _wrong(f"input {name} is {dtype}, which JSON does not carry; use gRPC.")
    bounds = np.iinfo(wanted)
    if int(array.min()) < bounds.min or int(array.max()) > bounds.max:
        raise _wrong(f"input {name} has values outside {bounds.min}..{bounds.max}, of {dtype}.")
    return array.astype(wanted)


def _wrong(text: str) -> ServingError:
    return ServingError("INVALID_ARGUMENT", text)


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
    """An HTTP server of a registry's models; `start()` it, or use it in a `with`.

    `hosts` are further host names of the server. An address that other machines can reach needs
    `tls` or `insecure`.

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
        metrics: ServerMetrics | None = None,
        limits: HttpLimits = DEFAULT_LIMITS,
        hosts: Collection[str] = (),
        insecure: bool = False,
    ) -> None:
        check_exposed(address, encrypted=tls is not None, insecure=insecure)
        self._registry = registry
        self._sync = SyncService(registry)
        self._metrics = metrics or ServerMetrics(registry)
        self._stopping = threading.Event()
        self._http = HttpServer(self._respond, address, tls=tls, limits=limits, hosts=hosts)
        self.address = self._http.address

    def start(self) -> Self:
        """Starts to answer requests."""
        self._http.start()
        return self

    def drain(self) -> None:
        """Reports NOT_SERVING at /healthz; requests are still answered."""
        self._stopping.set()

    def stop(self, grace_s: float = 5.0) -> None:
        """Accepts no more requests and waits at most `grace_s` seconds for those in flight."""
        self.drain()
        self._http.stop(grace_s)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _respond(self, method: str, target: str, body: bytes) -> HttpAnswer:
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
            return HttpAnswer(200, self._metrics.text(), CONTENT_TYPE)
        found = _PATH.fullmatch(path)
        if found is None:
            return _json(404, {"error": f"Malformed request: {method} {path}"})
        verb = found["verb"]
        if method != _METHODS[verb]:
            return _json(
                405, {"error": f"Malformed request: {method} {path}: use {_METHODS[verb]}"}
            )
        return self._answer(verb, found.groupdict(), body)

    def _answer(self, verb: str | None, asked: Mapping[str, str | None], body: bytes) -> HttpAnswer:
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
    """Sets the model, version or label of a path."""
    spec.name = unquote(asked["name"] or "")
    if asked["version"] is not None:
        spec.version.value = int(asked["version"])
        spec.version.SetInParent()
    elif asked["label"] is not None:
        spec.version_label = unquote(asked["label"])


def _predict(registry: Registry, request: Any, body: bytes) -> dict[str, Any]:
    """Runs a signature on JSON; the signature's specs give the dtypes of the numbers."""
    plain = read_json(body)
    spec = request.model_spec
    spec.signature_name = plain.signature
    with tensorflow_serving.lease_of(
        registry, spec
    ) as model:  # one version for both the dtypes and the run
        _, signature = calls.signature_of(model, plain.signature)
        for name, value in plain.tensors(signature.inputs).items():
            tensors.fill(request.inputs[name], value, name=name)
        outputs = tensorflow_serving.outputs(model, request)
    return plain.answer({name: outputs[name] for name in signature.outputs})


def _status(registry: Registry, request: Any, body: bytes) -> dict[str, Any]:
    return _plain(tensorflow_serving.status(registry, request))


def _metadata(registry: Registry, request: Any, body: bytes) -> dict[str, Any]:
    request.metadata_field.append("signature_def")
    response = tensorflow_serving.metadata(registry, request)
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


def _json(status: int, plain: dict[str, Any]) -> HttpAnswer:
    return HttpAnswer(status, json.dumps(plain).encode())
