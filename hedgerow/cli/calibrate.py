"""`hedgerow calibrate`: measures this device for the planner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import FileMissingError
from ..core.files import local_path
from .options import AsJson


def calibrate(
    seconds: Annotated[float, typer.Option(help="Approximate time to measure.")] = 60,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")] = Path(
        "calibration.json"
    ),
    device: Annotated[str, typer.Option(help="The device: cpu, cuda or cuda:N.")] = "cpu",
    points: Annotated[
        Path | None, typer.Option(help="Refit the points of this file; measure nothing.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure how long steps take on this device, and write a calibration for `hedgerow plan`.

    The steps are those of `EmbeddingBags`: forward, backward and update. Tables have dim 16 to 256,
    steps have 256 to 1,048,576 keys, as far as time and memory allow. The CPU is measured with as
    many threads as a job would use. A GPU is measured in every mode, with different shares of the
    keys on the host. This needs 12 GiB of HBM and 9 GiB of host memory, and one or two minutes more
    to compile kernels. End other programs first: they distort the times.
    """
    from ..calibration.calibrate import calibration_of, measure, refitted
    from .show import progress_bar

    if not local_path(out).absolute().parent.is_dir():  # fail before the measurement
        raise FileMissingError(f"there is no folder {out.parent}; make it, or give another --out.")
    if points is not None:
        calibration = refitted(points)
    else:
        with progress_bar() as progress:
            measured = measure(device, seconds, progress)
        calibration = calibration_of(measured)
    calibration.save(out)
    if as_json:
        typer.echo(json.dumps(calibration.to_dict(), indent=1))
    else:
        typer.echo(f"{calibration.text()}\nwrote {out}")
