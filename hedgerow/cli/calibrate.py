"""`hedgerow calibrate`: measures this device for the planner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import AsJson

if TYPE_CHECKING:
    from ..planner.times.calibration import Calibration


def calibrate(
    seconds: Annotated[float, typer.Option(help="About how long to measure.")] = 60,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("calibration.json"),
    device: Annotated[str, typer.Option(help="The device to measure: cpu.")] = "cpu",
    as_json: AsJson = False,
) -> None:
    """Measure what steps take on this device, and write a calibration for `hedgerow plan`.

    Tables of dim 16 to 256 are looked up and updated with 256 to 1,048,576 keys a step, as far as
    time and memory allow, with as many threads as a job would use. End other programs first: what
    they take is counted.
    """
    from ..bench.calibrate import measure
    from ..planner.times.calibrate import fit
    from ..planner.times.calibration import Calibration
    from .show import progress_bar

    with progress_bar() as progress:
        measured = measure(device, seconds, progress)
    fitted = fit(measured.points, device)
    calibration = Calibration(
        device=measured.device,
        memory_bytes=measured.memory_bytes,
        driver=measured.driver,
        library=measured.library,
        parameters=fitted.parameters,
        residuals=fitted.residuals,
        points=measured.points,
    )
    calibration.save(out)
    typer.echo(json.dumps(calibration.to_dict(), indent=1) if as_json else _text(calibration, out))


def _text(calibration: Calibration, out: Path) -> str:
    costs, errors = calibration.parameters, calibration.residuals
    lines = [f"{calibration.device}, {calibration.driver}"]
    for name, cost in costs.modes.items():
        launch, key = cost.launch_ms, 1e6 * cost.key_ms
        lines.append(f"  {name}: {launch:.4f} ms a step, {key:.1f} ns a distinct key")
    for name, speed in costs.memories.items():
        lines.append(f"  {name}: {speed / 1e6:.1f} GB/s")
    if errors is not None:
        steps = sum(point.kind == "step" for point in calibration.points)
        lines.append(
            f"  off by {errors.median:.1%} (median), {errors.p90:.1%} (one in ten), "
            f"{errors.worst:.1%} (worst) over {steps} measured steps"
        )
    warnings = [f"warning: {text}" for text in calibration.warnings()]
    return "\n".join([*lines, *warnings, f"wrote {out}"])
