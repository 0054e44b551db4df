"""`hedgerow import-monolith`: reads the original's table files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import InputError


def import_monolith(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SRC", help="Base name of the files (without -00000-of-00001), or their folder."
        ),
    ],
    show_list: Annotated[
        bool, typer.Option("--list", help="Read every file and list its tables.")
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(help="JSON list of table configurations that the rows must fit."),
    ] = None,
    reset_states: Annotated[
        bool,
        typer.Option(
            "--reset-states", help="Rows of another optimizer keep their values, not their states."
        ),
    ] = False,
) -> None:
    """Check and list table files of the original, or check that they fit configured tables.

    Every checksum, row and count is checked; the first damage ends the program with status 1 and
    the name of the file. `--config` reads all rows into tables in memory.
    """
    if show_list == (config is not None):
        raise InputError("give either --list or --config FILE.")
    if config is None:
        _list(source)
    else:
        _load(source, config, reset_states)


def _list(source: Path) -> None:
    from ..monolith.listing import list_tables
    from ..monolith.source import bases_of
    from .show import progress_bar

    for base in bases_of(source):
        with progress_bar() as progress:
            listing = list_tables(base, progress)
        typer.echo(f"{listing.base}: {listing.files} files, checksums ok")
        for table in listing.tables:
            dims = ", ".join(map(str, sorted(table.dims))) or "unknown"
            kinds = " or ".join(sorted("+".join(k) or "none" for k in table.optimizers))
            typer.echo(
                f"  {table.name}: {table.rows:,} rows, dim {dims}, "
                f"optimizer {kinds or 'unknown'}, newest time {table.newest_ts}"
            )


def _load(source: Path, config: Path, reset_states: bool) -> None:
    from ..monolith.source import load_tables
    from .show import progress_bar
    from .table_configs import read_configs

    configs = read_configs(config)
    with progress_bar() as progress:
        loaded = load_tables(
            source,
            configs,
            on_state_mismatch="reset" if reset_states else "error",
            progress=progress,
        )
    for name, table in loaded.imported.tables.items():
        facts = [f"{table.rows:,} rows read", f"{table.inserted:,} distinct"]
        facts += [f"{table.dropped:,} not finite, dropped"] if table.dropped else []
        facts += [f"{table.resets:,} with fresh states"] if table.resets else []
        typer.echo(f"{name}: {', '.join(facts)}")
    for name in loaded.imported.only_in_files:
        typer.echo(f"{name}: skipped, not in {config.name}")
    for name in loaded.imported.only_in_config:
        typer.echo(f"{name}: not in the files")
