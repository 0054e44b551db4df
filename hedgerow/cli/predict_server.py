"""`hedgerow predict --server`: predictions of a served model, for values in a JSON file."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.errors import FileMissingError, InputError, UnknownNameError

if TYPE_CHECKING:
    from ..serving.client import PredictionClient, SignatureInfo
    from ..serving.model import TensorSpec

Server = Annotated[
    str | None, typer.Option(help="Ask the server at HOST:PORT (gRPC) instead of a run's model.")
]
ModelName = Annotated[str, typer.Option(help="With --server: the model's name.")]
SignatureName = Annotated[str, typer.Option(help="With --server: the model's signature.")]
Inputs = Annotated[
    Path | None,
    typer.Option(
        help="With --server: a JSON file with `instances` (rows), `inputs` (columns) or names and "
        "values; the standard input if not given."
    ),
]
Version = Annotated[
    int | None, typer.Option(help="With --server: the model's version, not the newest.")
]
Ca = Annotated[
    Path | None, typer.Option(help="With --server: PEM file of who signed its certificate.")
]
TimeoutS = Annotated[float, typer.Option(help="With --server: when to give up.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of which server."""

    server: str
    model: str
    signature: str
    inputs: Path | None
    version: int | None
    ca: Path | None
    timeout_s: float


def predict_server(question: Question) -> None:
    """Sends the values and prints the answer as JSON; numbers get the types the server tells."""
    from ..serving.channels import ClientTls
    from ..serving.client import PredictionClient
    from ..serving.rest_json import read_json

    tls = None if question.ca is None else ClientTls(ca=_read(question.ca))
    request = read_json(_body(question.inputs))
    key = request.signature or question.signature
    with PredictionClient(question.server, tls=tls) as client:
        specs = _specs(client, question, key)
        outputs = client.predict(
            question.model,
            key,
            request.tensors(specs),
            version=question.version,
            timeout=question.timeout_s,
        )
    typer.echo(json.dumps(request.answer(outputs), indent=1))


def _body(path: Path | None) -> bytes:
    """The request in a file, or in the standard input; an object of names alone is columns."""
    data = sys.stdin.buffer.read() if path is None else _read(path)
    try:
        plain: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        where = "the standard input" if path is None else str(path)
        raise InputError(f"{where} is not JSON: {error}.") from error
    if isinstance(plain, dict) and not {"instances", "inputs"} & plain.keys():
        plain = {"inputs": plain}
    return json.dumps(plain).encode()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise FileMissingError(f"{path} cannot be read: {error}.") from error


def _specs(client: PredictionClient, question: Question, key: str) -> dict[str, TensorSpec]:
    from ..serving.model import ServingError, TensorSpec

    try:
        known = client.metadata(question.model, question.version, question.timeout_s)
    except ServingError as error:
        if error.code != "NOT_FOUND":
            raise
        raise UnknownNameError(
            f"{question.server} serves no model {question.model!r}, or not this version of it "
            f"({error}). Give --model the name that `hedgerow serve` logs when it loads the model."
        ) from error
    if key not in known:
        raise UnknownNameError(
            f"model {question.model} has no signature {key!r}; it has: {', '.join(known)}."
        )
    info: SignatureInfo = known[key]
    return {
        name: TensorSpec(one.dtype, one.shape or ())
        for name, one in info.inputs.items()
        if one.dtype is not None
    }
