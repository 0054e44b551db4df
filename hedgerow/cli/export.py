"""`hedgerow export`: exports the model of a run as a bundle for servers."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.errors import DtypeError, InputError, NotSupportedError
from ..core.units import format_count
from .options import AsJson, Trusted

if TYPE_CHECKING:
    from ..train.job import Job
    from ..train.run_folder import LoadedRun

_SAMPLES = 2  # samples of the example, whose values do not matter


_Out = Annotated[Path | None, typer.Option(help="The folder of bundles; default: RUN/bundles.")]
_Name = Annotated[
    str | None,
    typer.Option(help="The model's name for clients; default: the name of the run's folder."),
]
_Version = Annotated[
    int | None,
    typer.Option(help="The version; default: the time in seconds, or the newest plus 1.", min=0),
]
_Rows = Annotated[str, typer.Option(help="The form of rows on a server: fp32, fp16 or int8.")]
_Servers = Annotated[
    int, typer.Option(help="Divide the rows among this number of servers, ps_0 and on.", min=0)
]
_Sigmoid = Annotated[
    bool,
    typer.Option("--sigmoid", help="Serve probabilities, as `hedgerow predict`, not logits."),
]
_Best = Annotated[
    bool, typer.Option("--best", help="Use the checkpoint of the lowest test loss, not the newest.")
]
_Sign = Annotated[
    Path | None,
    typer.Option(help="File of a key to sign the bundle (`hedgerow keys bundle FILE`)."),
]


def export(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    out: _Out = None,
    name: _Name = None,
    version: _Version = None,
    rows: _Rows = "fp32",
    servers: _Servers = 0,
    sigmoid: _Sigmoid = False,
    best: _Best = False,
    sign: _Sign = None,
    trusted: Trusted = False,
    as_json: AsJson = False,
) -> None:
    """Export the model of a run as a bundle, which `hedgerow serve` serves.

    The bundle is written to OUT/NAME/VERSION. Clients may send ids as strings, as in the data: the
    server hashes them as training did.
    """
    from ..serving.export import export as write
    from ..train.run_folder import load_run

    begin_s = time.monotonic()
    base, called = out or run / "bundles", name or _name_of(run)
    if version is not None and (base / called / str(version)).exists():
        raise InputError(
            f"version {version} of {called} is there already in {base}; give another --version."
        )
    loaded = load_run(run, best=best, trusted=trusted)
    job = loaded.job
    fields = job.data.hashed(job.model.fields(job.data))
    try:
        folder = write(
            loaded.model,
            base,
            example=_example(job),
            version=version,
            rows=rows,
            name=called,
            servers=servers,
            fields=fields,
            sigmoid=sigmoid,
            key=sign,
        )
    except (DtypeError, NotSupportedError) as error:
        raise type(error)(f"the model of {run} cannot be exported: {error}") from error
    _tell(_report(loaded, folder, fields, sigmoid, time.monotonic() - begin_s), as_json)


def _example(job: Job) -> tuple[Any, Any]:
    """Returns arguments for the model: one id per sample, and numbers if the data has any."""
    import torch

    from ..core.id_batch import IdBatch

    lists = {name: [[0]] * _SAMPLES for name in job.data.feature_names()}
    return torch.zeros(_SAMPLES, job.data.dense_columns()), IdBatch.from_lists(lists)


def _name_of(run: Path) -> str:
    """Returns the name of a run's folder, with only characters that a model's name may have."""
    found = re.sub(r"[^A-Za-z0-9_.-]", "_", run.resolve().name).lstrip(".-")
    return found or "model"


def _report(
    loaded: LoadedRun, folder: Path, fields: dict[str, str], sigmoid: bool, seconds: float
) -> dict[str, Any]:
    from ..nn.model_tables import tables_of

    return {
        "path": str(folder),
        "name": folder.parent.name,
        "version": int(folder.name),
        "step": loaded.step,
        "checkpoint": str(loaded.checkpoint),
        "rows": sum(table.size() for table in tables_of(loaded.model).values()),
        "outputs": "probabilities" if sigmoid else "logits",
        "strings": fields,
        "seconds": round(seconds, 3),
    }


def _tell(report: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(report, indent=1))
        return
    typer.echo(
        f"step {report['step']}  {format_count(report['rows'])} rows  model {report['name']}  "
        f"version {report['version']}  answers {report['outputs']}"
    )
    typer.echo(f"wrote {report['path']}; serve it: hedgerow serve {Path(report['path']).parent}")
