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
    seconds: Annotated[float, typer.Option(help="About how long to measure.")] = 60,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")] = Path(
        "calibration.json"
    ),
    device: Annotated[str, typer.Option(help="What to measure: cpu, cuda or cuda:N.")] = "cpu",
    points: Annotated[
        Path | None, typer.Option(help="Fit the points of this file anew, and measure nothing.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure what steps take on this device, and write a calibration for `hedgerow plan`.

    Steps are those of `EmbeddingBags`: forward, backward and the update. Tables have dim 16 to 256,
    steps 256 to 1,048,576 keys, as far as time and memory allow. On the CPU they run with as many
    threads as a job would use; on a GPU in every mode, with shares of the keys on the host: that
    needs 12 GiB of HBM and 9 GiB of host memory, and compiles kernels first, which adds a minute or
    two. End other programs: what they take is counted.
    """
    from ..calibration.calibrate import calibration_of, measure, refitted
    from .show import progress_bar

    if not local_path(out).absolute().parent.is_dir():  # told before the measurement, not after
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
