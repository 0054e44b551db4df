"""`hedgerow import-monolith`: checks Monolith's table files, or converts them to a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.errors import InputError
from .options import Overwrite, checkpoint_line

if TYPE_CHECKING:
    from ..monolith.files.importer import LoadedCheckpoint
    from ..routing.router import Router

_RULE = "hash_roundrobin"  # the default of `save_tables`


def import_monolith(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SRC", help="The files' base name (without -00000-of-00001), or their folder."
        ),
    ],
    show_list: Annotated[
        bool, typer.Option("--list", help="Read every file and list its tables.")
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(help="JSON list of table configs into which to read the rows."),
    ] = None,
    reset_states: Annotated[
        bool,
        typer.Option(
            "--reset-states", help="Reset optimizer states that are of another optimizer."
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Save the tables of --config as a checkpoint into this folder."),
    ] = None,
    shards: Annotated[int, typer.Option(help="Shards of the checkpoint.")] = 1,
    dist_type: Annotated[
        str, typer.Option(help="Routing rule of the checkpoint: roundrobin or hash_roundrobin.")
    ] = _RULE,
    overwrite: Overwrite = False,
) -> None:
    """Check and list table files of Monolith, or read them into configured tables.

    Every checksum, row and count is checked. The first damage ends the program with status 1 and
    the name of the file. `--config` reads all rows into tables in memory. `--out` then saves the
    tables that are in the files, with rows, states and times.
    """
    from ..routing.router import Router

    if show_list == (config is not None):
        raise InputError("give either --list or --config FILE.")
    router = Router(dist_type, shards)
    if out is None:
        if overwrite or router != Router(_RULE, 1):
            raise InputError("--shards, --dist-type and --overwrite need --out DIR.")
    elif config is None:
        raise InputError("--out needs --config FILE: the tables that shall hold the rows.")
    else:
        _check_target(out, overwrite)
    if config is None:
        _list(source)
        return
    loaded = _load(source, config, reset_states)
    if out is not None:
        _save(loaded, out, router, overwrite)


def _check_target(out: Path, overwrite: bool) -> None:
    """Raises the errors of the save before the long work."""
    from ..tables.checkpoint.save import complete_there

    complete_there(out, overwrite)


def _list(source: Path) -> None:
    from ..monolith.files.importer import bases_of, list_tables
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


def _load(source: Path, config: Path, reset_states: bool) -> LoadedCheckpoint:
    from ..monolith.files.importer import load_tables
    from .show import progress_bar
    from .table_files import read_configs

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
    return loaded


def _save(loaded: LoadedCheckpoint, out: Path, router: Router, overwrite: bool) -> None:
    from ..tables.checkpoint.save import save_tables
    from ..tables.checkpoint.workers import CheckpointProgress
    from .show import progress_bar

    # Tables that are not in the files are left out: a load then leaves them unchanged.
    tables = [loaded.tables[name] for name in loaded.imported.tables]
    if not tables:
        raise InputError(f"the files have none of the configured tables; {out} was not written.")
    with progress_bar() as bar:

        def tell(now: CheckpointProgress) -> None:
            bar("saved rows", now.rows, now.rows_total)

        done = save_tables(tables, out, router=router, overwrite=overwrite, report=tell)
    typer.echo(checkpoint_line(out, done))
