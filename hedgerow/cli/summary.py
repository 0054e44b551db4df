"""`hedgerow summary`: shows the model of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .options import AsJson, Trusted


def summary(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    trusted: Trusted = False,
    as_json: AsJson = False,
) -> None:
    """Show the job, the step and the tables of a run's newest checkpoint."""
    from ..nn.model_tables import stats
    from ..nn.model_tables import summary as describe
    from ..train.run_folder import load_run

    loaded = load_run(run, trusted=trusted)
    job = loaded.job
    if as_json:
        report = {
            "step": loaded.step,
            "checkpoint": str(loaded.checkpoint),
            "dense_parameters": sum(p.numel() for p in loaded.model.parameters()),
            "tables": stats(loaded.model),
            "job": job.to_dict(),
        }
        typer.echo(json.dumps(report, indent=1))
        return
    typer.echo(f"{job.model.word} on {job.data.word}, step {loaded.step}: {loaded.checkpoint}")
    typer.echo(describe(loaded.model))
