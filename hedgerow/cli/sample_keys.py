"""`hedgerow sample-keys`: writes statistics of a table's keys for the planner."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.files import write_whole
from .options import AsJson

if TYPE_CHECKING:
    from ..planner.problem.key_stats import KeyStats


def sample_keys(
    files: Annotated[
        list[Path], typer.Argument(help="Keys in order of use: .parquet, .npy or .txt files.")
    ],
    column: Annotated[str, typer.Option(help="The column of Parquet files.")] = "",
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("stats.json"),
    limit: Annotated[
        str, typer.Option(help="Ids to sample, with k or M for thousands or millions.")
    ] = "2M",
    as_json: AsJson = False,
) -> None:
    """Count a sample of a table's keys, and write the statistics that `hedgerow plan` reads.

    The first ids of each file are used, the same number from each file: their order shows how long
    a cache keeps keys, and how keys change over time. Large Parquet files are not read completely.
    """
    from .show import progress_bar

    with progress_bar() as progress:
        stats = _sampled(files, column, _number(limit), progress)
    write_whole(out, json.dumps(stats.to_dict()) + "\n")
    typer.echo(json.dumps(stats.to_dict()) if as_json else _text(stats, out))


def _sampled(
    files: list[Path], column: str, limit: int, progress: Callable[[str, int, int], None]
) -> KeyStats:
    from ..planner.problem.key_stats import KeySampler
    from .key_file import stream_keys

    sampler = KeySampler(limit)
    for place, path in enumerate(files):
        progress(path.name, sampler.taken, limit)
        share = (limit - sampler.taken) // (len(files) - place)
        enough = sampler.taken + max(1, share)
        for keys in stream_keys(path, column):
            sampler.add(keys[: max(0, enough - sampler.taken)])
            progress(path.name, sampler.taken, limit)
            if sampler.taken >= enough or sampler.full:
                break
    return sampler.stats()


def _number(text: str) -> int:
    from ..core.errors import InputError

    scale = {"k": 10**3, "M": 10**6}.get(text[-1:], 1)
    digits = text if scale == 1 else text[:-1]
    if not digits.isdecimal() or not digits.isascii() or int(digits) < 1:
        raise InputError(f"--limit is {text!r}; give a number of ids, as in 500k or 2M.")
    return int(digits) * scale


def _text(stats: KeyStats, out: Path) -> str:
    hottest = stats.head[0] / stats.sampled
    return (
        f"{stats.sampled:,} ids of {stats.distinct:,} keys; the hottest is {hottest:.2%} of all\n"
        f"the next id is a new key with a chance of {stats.unseen_mass:.2%}; of the hot keys of "
        f"the later half {stats.drift:.1%} are new\nwrote {out}"
    )
