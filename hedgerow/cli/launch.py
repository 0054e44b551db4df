"""`hedgerow launch`: a script in several processes of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

# What follows the script belongs to the script, whatever it looks like.
CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}


def launch(
    context: typer.Context,
    script: Annotated[
        str, typer.Argument(help="The script to run; with -m, a module.", show_default=False)
    ],
    nproc: Annotated[
        int | None,
        typer.Option(help="Processes to start. Else the config file, HEDGEROW_NPROC, or 1."),
    ] = None,
    module: Annotated[
        bool, typer.Option("-m", "--module", help="SCRIPT is a module, as in `python -m`.")
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(help="A TOML file with nproc, backend and timeout_s in its table [launch]."),
    ] = None,
) -> None:
    """Run SCRIPT and its arguments in several processes, with torchrun.

    If one process fails, the others are ended, and the exit status is not 0. Several machines:
    docs/launch.md. Ctrl-C is passed on to the processes.

    Try: `hedgerow launch --nproc 2 -m hedgerow train job.toml`
    """
    from ..core.errors import FileMissingError
    from ..launch.torchrun import processes, read_config, run_script

    if not module and not Path(script).exists():
        raise FileMissingError(f"no script {script}; options of hedgerow go before the script.")
    settings = read_config(config) if config else {}
    count = processes(nproc, settings)
    raise typer.Exit(run_script(count, [script, *context.args], settings, module=module))
