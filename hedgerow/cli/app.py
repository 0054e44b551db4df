"""The program `hedgerow`: its commands, its version, and its error output."""

from __future__ import annotations

import sys
from importlib import metadata
from typing import Annotated

import typer

from ..core.errors import ConfigError, DtypeError, HedgerowError, InputError, UnknownNameError
from . import (
    agent,
    balance,
    bench,
    calibrate,
    check,
    doctor,
    explain,
    export,
    inspect,
    keys,
    launch,
    plan,
    predict,
    ps,
    ps_status,
    reshard,
    sample_keys,
    serve,
    summary,
    train,
    zk,
)
from .import_monolith import import_monolith
from .log_lines import LogLevel, log_lines
from .options import Verbs

_JOB_FAILED, _BAD_ARGUMENTS = 1, 2

app = Verbs(
    help="Embedding tables without a vocabulary, for PyTorch.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # so that paragraphs of help are reflowed
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(agent.agent)
app.command()(balance.balance)
app.add_typer(bench.app, name="bench")
app.command()(calibrate.calibrate)
app.command()(check.check)
app.command()(explain.explain)
app.command()(export.export)
app.command("import-monolith")(import_monolith)
app.command()(inspect.inspect)
app.command(
    context_settings={**launch.CONTEXT, "allow_interspersed_args": False},
)(launch.launch)
app.command()(plan.plan)
app.command()(ps.ps)
app.command("ps-status")(ps_status.ps_status)
app.add_typer(keys.app, name="keys")
app.command()(reshard.reshard)
app.command("sample-keys")(sample_keys.sample_keys)
app.command()(serve.serve)
app.command()(train.train)
app.command()(predict.predict)
app.command()(summary.summary)
app.command()(doctor.doctor)
app.add_typer(zk.app, name="zk")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hedgerow {metadata.version('hedgerow')}")
        raise typer.Exit


@app.callback()
def _program(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
    log_level: LogLevel = None,
) -> None:
    """Embedding tables without a vocabulary, for PyTorch."""
    context.with_resource(log_lines(log_level))


def main() -> None:
    """Runs the program; prints an error of Hedgerow or of the system as one line on stderr."""
    try:
        app(prog_name="hedgerow")
    except HedgerowError as error:
        typer.echo(f"hedgerow: {' '.join(str(error).split())}", err=True)
        arguments = (ConfigError, DtypeError, InputError, UnknownNameError)
        sys.exit(_BAD_ARGUMENTS if isinstance(error, arguments) else _JOB_FAILED)
    except OSError as error:  # for example a folder without write permission, or a full disk
        typer.echo(f"hedgerow: {error}", err=True)
        sys.exit(_JOB_FAILED)
