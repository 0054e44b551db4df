"""`hedgerow predict`: writes predictions of a run's model to a file, or queries a served model."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.errors import FileMissingError, InputError, UnknownNameError
from ..core.files import local_path, naming
from ..core.units import format_count
from .options import AsJson, Trusted

if TYPE_CHECKING:
    from torch import Tensor

    from ..data.source import Batch, BatchSource
    from ..serving.client import PredictionClient, SignatureInfo
    from ..serving.model import TensorSpec
    from ..train.job import Job


Server = Annotated[
    str | None, typer.Option(help="Query the server at HOST:PORT (gRPC), not a run's model.")
]
ModelName = Annotated[str, typer.Option(help="With --server: the model's name.")]
SignatureName = Annotated[str, typer.Option(help="With --server: the model's signature.")]
Inputs = Annotated[
    Path | None,
    typer.Option(
        help="With --server: JSON file with `instances` (rows), `inputs` (columns) or an object of "
        "names and values; default: standard input."
    ),
]
Version = Annotated[
    int | None, typer.Option(help="With --server: the model's version; default: the newest.")
]
Ca = Annotated[
    Path | None, typer.Option(help="With --server: PEM file of the server's certificate authority.")
]
TimeoutS = Annotated[float, typer.Option(help="With --server: timeout in seconds.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerQuery:
    """A request for predictions, and the server to send it to."""

    server: str
    model: str
    signature: str
    inputs: Path | None
    version: int | None
    ca: Path | None
    timeout_s: float


def predict_server(question: ServerQuery) -> None:
    """Sends values and prints the answer as JSON; numbers get the dtypes of the signature."""
    from ..serving.channels import ClientTls
    from ..serving.client import PredictionClient
    from ..serving.rest import read_json

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
    """Returns the request in a file or standard input; an object of plain names is columns."""
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


def _specs(client: PredictionClient, question: ServerQuery, key: str) -> dict[str, TensorSpec]:
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


_OWN = ("row", "prediction", "label")  # names of columns that predictions have anyway


def predict(
    run: Annotated[Path | None, typer.Argument(help="The folder of a run.")] = None,
    files: Annotated[
        list[Path] | None,
        typer.Option(help="Predict these files, not the job's test data; repeatable."),
    ] = None,
    unlabelled: Annotated[
        bool, typer.Option("--unlabelled", help="The files have no label column.")
    ] = False,
    best: Annotated[
        bool, typer.Option("--best", help="Use the checkpoint of the lowest test loss, not newest.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="The file to write; default: predictions.parquet in the run's folder."),
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(help="Column to copy to the predictions; repeatable. Default: the job's."),
    ] = None,
    row_numbers: Annotated[
        bool,
        typer.Option("--row-numbers", help="Add a column `row`, counted from 0 over all files."),
    ] = False,
    trusted: Trusted = False,
    as_json: AsJson = False,
    server: Server = None,
    model: ModelName = "entry",
    signature: SignatureName = "serving_default",
    inputs: Inputs = None,
    version: Version = None,
    ca: Ca = None,
    timeout_s: TimeoutS = 10.0,
) -> None:
    """Predict the test data of a run, or other files; show metrics if there are labels.

    The file has a column `prediction`, a probability, and `label` if the data has labels. Rows have
    the order of the files; `--key` and `--row-numbers` add columns that identify them. With
    `--server`, the command queries a served model instead and prints the answer as JSON.
    """
    if server is not None:
        if run is not None:
            raise InputError(f"RUN is {run}, and --server asks a server; give one of them.")
        predict_server(
            ServerQuery(
                server=server,
                model=model,
                signature=signature,
                inputs=inputs,
                version=version,
                ca=ca,
                timeout_s=timeout_s,
            )
        )
        return
    if run is None:
        raise InputError("name the folder of a run, or a server with --server HOST:PORT.")
    asked = PredictInputs(tuple(map(str, files or ())), unlabelled, tuple(key or ()), row_numbers)
    _predict_run(run, asked, out, as_json, best=best, trusted=trusted)


@dataclass(frozen=True, slots=True)
class PredictInputs:
    """The files to predict (the job's test data if empty), and the columns to copy."""

    files: tuple[str, ...]
    unlabelled: bool
    keys: tuple[str, ...]
    row_numbers: bool


def _predict_run(
    run: Path, asked: PredictInputs, out: Path | None, as_json: bool, *, best: bool, trusted: bool
) -> None:
    from ..train.run_folder import load_run
    from .train_report import finite

    loaded = load_run(run, best=best, trusted=trusted)
    source = _source(loaded.job, asked)
    path = local_path(out or run / "predictions.parquet")
    metrics = _write(loaded.model, source, path, row_numbers=asked.row_numbers)
    samples = int(metrics.pop("samples"))
    report = {"step": loaded.step, "samples": samples, "metrics": metrics, "path": str(path)}
    if as_json:
        typer.echo(json.dumps(finite(report), indent=1, allow_nan=False))
        return
    told = "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())
    typer.echo(f"step {loaded.step}  {format_count(samples)} samples  {told}".rstrip())
    typer.echo(f"wrote {path}")


def _source(job: Job, asked: PredictInputs) -> BatchSource:
    from ..train.job_data import ColumnData, FileData

    data, fields = job.data, job.model.fields(job.data)
    if isinstance(data, FileData):
        if asked.unlabelled:
            data = data.unlabelled()
        if asked.files:
            data = replace(data, test_files=asked.files)
    elif asked.files or asked.unlabelled:
        raise InputError(f"--files and --unlabelled do not fit the run: its data is {data.word}.")
    if isinstance(data, ColumnData):
        _check_keys(asked.keys or data.keys)
        source = data.test_with_keys(fields, asked.keys)
    elif asked.keys:
        raise InputError(
            f"--key is {asked.keys[0]!r}, and the run's data, {data.word}, has no such columns; "
            f"use --row-numbers."
        )
    else:
        source = data.test(fields)
    if source is None:
        raise InputError("the job has no test_files; name what to predict with --files.")
    return source.share(0, 1)


def _check_keys(keys: Sequence[str]) -> None:
    for name in keys:
        if name in _OWN or keys.count(name) > 1:
            raise InputError(
                f"the key {name!r} would be two columns of the file of predictions; name each "
                f"column once, and none of {', '.join(_OWN)}."
            )


def _write(model: Any, source: BatchSource, path: Path, *, row_numbers: bool) -> dict[str, float]:
    """Predicts batch by batch; returns the metrics, or without labels only the sample count."""
    from ..train.evaluate import predictions
    from ..train.metrics import BinaryMetrics

    metrics, samples, labelled = BinaryMetrics(), 0, True
    with _rows_of(path, row_numbers=row_numbers) as write:
        for logits, batch in predictions(model, source):
            labelled = not bool(batch.labels.isnan().any())  # sources have all labels or none
            if labelled:
                metrics.update(logits, batch.labels, batch.weights)
            samples += batch.samples
            write(logits.sigmoid(), batch, labelled)
    return {**(metrics.result() if labelled else {}), "samples": float(samples)}


@contextmanager
def _rows_of(path: Path, *, row_numbers: bool) -> Iterator[Any]:
    """Yields a function that appends rows to a Parquet file, which appears only when complete."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    part = path.with_name(f"{path.name}.part")
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        part.unlink(missing_ok=True)  # others may have put a link there: do not follow it
        file = part.open("xb")
    writer, rows = None, 0

    def write(prediction: Tensor, batch: Batch, labelled: bool) -> None:
        nonlocal writer, rows
        columns: dict[str, Any] = {}
        if row_numbers:
            columns["row"] = pa.array(range(rows, rows + batch.samples), pa.int64())
        rows += batch.samples
        if batch.keys is not None:
            columns |= {name: batch.keys.column(name) for name in batch.keys.column_names}
        columns["prediction"] = prediction.numpy()
        if labelled:
            columns["label"] = batch.labels.numpy()
        table = pa.table(columns)
        if writer is None:
            writer = pq.ParquetWriter(file, table.schema)
        with naming(path):
            writer.write_table(table)

    try:
        yield write
        if writer is None:
            raise InputError("there are no samples to predict; nothing was written.")
        with naming(path):
            writer.close()
            file.close()
            part.replace(path)
    finally:
        with suppress(OSError):  # of a full disk, which has already been reported
            if writer is not None:
                writer.close()
            file.close()
        part.unlink(missing_ok=True)
