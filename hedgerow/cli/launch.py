"""`hedgerow launch`: runs a script in several processes, with or without parameter servers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import ConfigError, FileMissingError
from ..launch.job_watch import JobSpec, run_job
from ..launch.local_job import LocalProcesses
from ..launch.ray_job import RayProcesses

# All words after the script are its arguments, even if they look like options.
CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}
_SERVER_ENTRY = "hedgerow.ps.server:serve_shard"
_SERVER_COMMAND = (sys.executable, "-m", "hedgerow", "ps")

_Servers = Annotated[
    int | None, typer.Option(help="Parameter servers to start, for `hr.distribute(model)`.")
]
_Workers = Annotated[
    int | None, typer.Option(help="With --servers: number of worker processes. [default: 1]")
]
_Ray = Annotated[
    bool,
    typer.Option("--ray", help="With --servers: run on Ray, at RAY_ADDRESS or a local cluster."),
]
_Checkpoint = Annotated[
    Path | None, typer.Option(help="With --servers: folder for the servers' rows and logs.")
]
_Keys = Annotated[
    Path | None,
    typer.Option(help="With --servers: folder of keys, at the same path on all machines."),
]
_Insecure = Annotated[
    bool, typer.Option("--insecure", help="With --ray: run servers of a cluster without keys.")
]


def launch(
    context: typer.Context,
    script: Annotated[
        str, typer.Argument(help="The script to run, or with -m a module.", show_default=False)
    ],
    nproc: Annotated[
        int | None,
        typer.Option(help="Number of processes; default: the config file, HEDGEROW_NPROC, or 1."),
    ] = None,
    module: Annotated[
        bool, typer.Option("-m", "--module", help="SCRIPT is a module, as in `python -m`.")
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(help="TOML file with nproc, backend and timeout_s in its table [launch]."),
    ] = None,
    servers: _Servers = None,
    workers: _Workers = None,
    ray: _Ray = False,
    checkpoint: _Checkpoint = None,
    keys: _Keys = None,
    insecure: _Insecure = False,
) -> None:
    """Run SCRIPT with its arguments in several processes.

    Without --servers, torchrun starts them on this machine. With --servers, the command starts
    parameter servers, and workers in which `hr.distribute(model)` uses these servers. They are
    processes of this machine, or actors of Ray.

    If one process fails, the others are stopped, and the exit status is not 0. For several machines
    see docs/guides/launch.md and docs/guides/parameter-servers.md. Ctrl-C is passed on to the
    processes.

    Try: `hedgerow launch --nproc 2 -m hedgerow train job.toml`
    """
    if not module and not Path(script).exists():
        raise FileMissingError(f"no script {script}; options of hedgerow go before the script.")
    target = (script, *context.args)
    if servers is None:
        _only_with_servers(workers=workers, ray=ray, checkpoint=checkpoint, keys=keys)
        raise typer.Exit(_ranks(nproc, config, target, module=module))
    if nproc is not None or config is not None:
        raise ConfigError("--nproc and --config cannot be used with --servers; use --workers N.")
    plan = JobSpec(
        servers=servers,
        workers=1 if workers is None else workers,
        script=("-m", *target) if module else target,
        checkpoint=checkpoint and checkpoint.absolute(),
        keys=keys and keys.absolute(),
        insecure=insecure,
    )
    raise typer.Exit(_with_servers(plan, ray=ray))


def _with_servers(plan: JobSpec, *, ray: bool) -> int:
    crew = RayProcesses(plan, _SERVER_ENTRY) if ray else LocalProcesses(plan, _SERVER_COMMAND)
    return run_job(crew, plan.workers, lambda line, is_error: typer.echo(line, err=is_error))


def _ranks(nproc: int | None, config: Path | None, target: tuple[str, ...], *, module: bool) -> int:
    from ..launch.torchrun import processes, read_config, run_script

    settings = read_config(config) if config else {}
    return run_script(processes(nproc, settings), target, settings, module=module)


def _only_with_servers(**given: object) -> None:
    found = [f"--{name}" for name, value in given.items() if value]
    if found:
        raise ConfigError(f"{', '.join(found)} without --servers; add --servers N.")
