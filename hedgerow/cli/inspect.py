"""`hedgerow inspect`: shows the contents of a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..core.errors import InputError
from ..core.units import format_bytes
from .options import AsJson

if TYPE_CHECKING:
    from ..tables.checkpoint.chain import Chain, FoundRow, TableStatistics


_MOST_METADATA = 300  # characters


def inspect(
    path: Annotated[Path, typer.Argument(help="The folder of a checkpoint.")],
    table: Annotated[str, typer.Option(help="Only this table.")] = "",
    key: Annotated[
        int | None,
        typer.Option(help="Show the row of this id; with several tables, needs --table."),
    ] = None,
    stats: Annotated[
        bool, typer.Option("--stats", help="Read all rows: mean norm, times, zero rows.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Verify the checksum of every file.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the contents of a checkpoint, including its increments.

    Without options only manifests are read. The exit status is 1 if something is damaged.
    """
    from ..core.checks import unknown
    from ..tables.checkpoint.chain import Chain

    chain = Chain.read(path)
    if table and table not in chain.tables:
        unknown("table", table, chain.tables)
    names = [table] if table else list(chain.tables)
    report = _summary(chain, names)
    if verify or stats or key is not None:
        _verify(chain)
        report["checksums"] = "ok"
    if stats:
        for name, found in _statistics(chain, names).items():
            report["tables"][name]["stats"] = found.to_dict()
    if key is not None:
        report["row"] = _row(chain, names, key)
    if as_json:
        typer.echo(json.dumps(report, indent=1))
    else:
        _show(report)


def _summary(chain: Chain, names: list[str]) -> dict[str, Any]:
    base, last = chain.base, chain.last
    return {
        "path": str(chain.folder),
        "format": 1,
        "step": last.step,
        "metadata": last.metadata,
        "dist_type": ", ".join(base.dist_types()),
        "shards": base.routing.shards,
        "increments": len(chain.increments),
        "rows": base.rows,
        "bytes": sum(manifest.data_bytes for manifest in chain.manifests),
        "checksums": "not verified",
        "blobs": sorted({blob.name for m in chain.manifests for blob in m.blobs}),
        "tables": {name: _table(chain, name) for name in names},
    }


def _table(chain: Chain, name: str) -> dict[str, Any]:
    schema = chain.tables[name].schema
    here = [m.tables[name] for m in chain.manifests if name in m.tables]
    of_base = chain.base.tables.get(name)
    return {
        "rows": of_base.rows if of_base else 0,
        "changed": sum(entry.rows for entry in here) - (of_base.rows if of_base else 0),
        "deleted": sum(entry.deletions for entry in here),
        "dist_type": [m for m in chain.manifests if name in m.tables][-1].dist_type_of(name),
        "dim": schema.dim,
        "segments": [segment.dim for segment in schema.segments],
        "optimizers": [segment.optimizer for segment in schema.segments],
        "columns": [column.name for column in schema.columns()],
    }


def _verify(chain: Chain) -> None:
    from ..tables.checkpoint.workers import Meter
    from .show import progress_bar

    total = sum(manifest.data_bytes for manifest in chain.manifests)
    with progress_bar() as bar:
        chain.verify(Meter(0, lambda now: bar("verifying bytes", now.file_bytes, total)))


def _statistics(chain: Chain, names: list[str]) -> dict[str, TableStatistics]:
    from ..tables.checkpoint.chain import statistics
    from .show import progress_bar

    with progress_bar() as bar:
        total = sum(m.tables[n].rows for m in chain.manifests for n in names if n in m.tables)
        done = 0
        found = {}
        for name in names:
            start = done

            def tell(rows: int, start: int = start, name: str = name) -> None:
                bar(f"reading {name}", start + rows, total)

            found[name] = statistics(chain, name, tell)
            done += found[name].rows
    return found


def _row(chain: Chain, names: list[str], key: int) -> dict[str, Any]:
    from ..tables.checkpoint.chain import find_row

    if len(names) != 1:
        raise InputError(f"--key needs --table, one of {', '.join(names)}.")
    if not -(2**63) <= key < 2**63:
        raise InputError(f"--key is {key}; an id lies in -2**63..2**63-1.")
    found: FoundRow | None = find_row(chain, names[0], key)
    if found is None:
        raise InputError(f"table {names[0]!r} of {chain.folder} has no row of id {key}.")
    return found.to_dict()


def _show(report: dict[str, Any]) -> None:
    console = Console(highlight=False)
    head = [
        f"format {report['format']}",
        f"step {report['step']}",
        f"{report['shards']} shards ({report['dist_type']})",
        f"{_grouped(report['rows'])} rows" + (" in the base" if report["increments"] else ""),
        *([f"increments {report['increments']}"] if report["increments"] else []),
        format_bytes(report["bytes"]),
        f"checksums {report['checksums']}",
    ]
    console.print("   ".join(head), soft_wrap=True)
    if "row" in report:
        _show_row(console, report["row"])
        return
    for line in _metadata(report["metadata"]):
        console.print(escape(line), soft_wrap=True)
    if report["blobs"]:
        console.print(f"blobs {escape(', '.join(report['blobs']))}", soft_wrap=True)
    console.print(_tables(report))


def _metadata(given: dict[str, Any]) -> Iterator[str]:
    """Yields readable lines about the user's metadata and about what `hr.save` saves with rows."""
    own, more = given, []
    if "updates" in given:  # a model's checkpoint: the user's metadata is in "user"
        own = given.get("user", {})
        extras = given.get("extras")
        more = ["dense weights", *(extras if isinstance(extras, dict) else ())]
    if own:
        text = json.dumps(own)
        rest = "" if len(text) <= _MOST_METADATA else " ... (--json shows all)"
        yield f"metadata {text[:_MOST_METADATA]}{rest}"
    if more:
        yield f"beside the rows: {', '.join(more)}"


def _tables(report: dict[str, Any]) -> Table:
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    with_stats = any("stats" in t for t in report["tables"].values())
    for name in ("table", "rows", "dim", "state"):
        shown.add_column(name, justify="right" if name in ("rows", "dim") else "left")
    if report["increments"]:
        shown.add_column("changed", justify="right")
        shown.add_column("deleted", justify="right")
    for name in ("mean |row|", "zero rows", "oldest touch", "newest touch") if with_stats else ():
        shown.add_column(name, justify="right")
    for name, table in report["tables"].items():
        kinds = dict.fromkeys(kind or "none" for kind in table["optimizers"])
        cells = [escape(name), _grouped(table["rows"]), str(table["dim"]), escape(", ".join(kinds))]
        if report["increments"]:
            cells += [_grouped(table["changed"]), _grouped(table["deleted"])]
        if "stats" in table:
            s = table["stats"]
            cells[1] = _grouped(s["rows"])  # increments included
            cells += [f"{s['mean_length']:.3g}", _grouped(s["zero_rows"])]
            cells += [_time(s["oldest_ts"]), _time(s["newest_ts"])]
        shown.add_row(*cells)
    return shown


def _show_row(console: Console, row: dict[str, Any]) -> None:
    console.print(f"shard {row['shard']}   last {_time(row['ts'])}", soft_wrap=True)
    for name, values in row["columns"].items():
        numbers = values if isinstance(values, list) else [values]
        listed = ", ".join(f"{x:.6g}" if isinstance(x, float) else str(x) for x in numbers)
        console.print(f"{escape(name)} {escape(f'[{listed}]')}", soft_wrap=True)


def _grouped(count: int) -> str:
    return f"{count:,}".replace(",", " ")


def _time(ts: int | None) -> str:
    """Returns seconds since 1970 as a date; a small number, a user's own counter, stays."""
    if ts is None:
        return "-"
    if not 10**8 <= ts < 2**35:
        return str(ts)
    return datetime.fromtimestamp(ts, UTC).strftime("%Y-%m-%d %H:%M")
