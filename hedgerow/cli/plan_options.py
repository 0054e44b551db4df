"""Options of a command line that name machines, sizes and tables, as planning verbs take them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..core.errors import InputError
from ..core.units import parse_bytes

if TYPE_CHECKING:
    from ..planner.problem.topology import Reserve, Topology

LocalRanks = Annotated[
    int | None, typer.Option(help="Ranks of a machine; all of them on one if not given.", min=1)
]
Hbm = Annotated[
    str | None,
    typer.Option(help="HBM of each device, as in 80GiB; 0 for ranks without cards. As found here."),
]
Host = Annotated[
    str | None, typer.Option(help="Host memory of each machine, as in 1TiB. As found here.")
]

Batch = Annotated[
    int | None, typer.Option(help="Samples of a rank and step; a job's own, or 4096.", min=1)
]
KeepHbm = Annotated[
    str, typer.Option(help="HBM of a device to keep free beside 15 %: the dense part.")
]
KeepHost = Annotated[str, typer.Option(help="Host memory of a machine to keep free beside 10 %.")]
WhatIf = Annotated[
    str | None, typer.Option(help="Other sizes to try: hbm=24GiB,32GiB, or host=...")
]
Pin = Annotated[
    list[str] | None,
    typer.Option(help="A table's mode, or one option: item=CACHING, item=CACHING@0.1."),
]
Rows = Annotated[list[str] | None, typer.Option(help="Rows of tables: item=1000000.")]
Times = Annotated[Path | None, typer.Option(help="Times of the device, from `hedgerow calibrate`.")]
LayoutName = Annotated[str, typer.Option(help="Whose tables: hedgerow, strict or baseline.")]
ChooseRouting = Annotated[
    bool,
    typer.Option(
        "--choose-routing", help="Take the dist_type that samples advise, for a new model."
    ),
]
Thrashing = Annotated[
    bool, typer.Option("--allow-thrashing", help="Caches smaller than one step, too.")
]
TimeLimit = Annotated[float, typer.Option(help="Seconds for the solver.", min=0.1)]
Out = Annotated[Path | None, typer.Option(help="Write the plan to this file.")]
Html = Annotated[Path | None, typer.Option(help="Write a page to this file.")]
Png = Annotated[Path | None, typer.Option(help="Write a picture to this file.")]


def machines(ranks: int, local: int | None, hbm: str | None, host: str | None) -> Topology:
    """The machines of options; what is not given is as on this one."""
    from ..planner.problem.topology import Topology

    card = None if hbm is None else size_of("--hbm", hbm)
    pool = None if host is None else size_of("--host", host)
    if card is None or pool is None:
        here = Topology.detect(ranks, local, device="cpu" if card is not None else None)
        card = min(here.hbm_by_device) if card is None else card
        pool = here.machines[0].ddr if pool is None else pool
    return Topology(
        world=ranks,
        local_world=local,
        hbm_per_device=card,
        ddr_per_machine=pool,
        device="cuda" if card else "cpu",
    )


def reserve(hbm: str, host: str) -> Reserve:
    """What is kept free beside the usual shares."""
    from ..planner.problem.topology import Reserve

    return Reserve(hbm_bytes=size_of("--keep-hbm", hbm), ddr_bytes=size_of("--keep-host", host))


def size_of(option: str, text: str) -> int:
    """Bytes of "80GiB"; plain 0 needs no unit."""
    if text.strip() == "0":
        return 0
    try:
        return parse_bytes(text)
    except InputError as error:
        raise InputError(f"{option}: {error}") from error


def pairs(option: str, given: list[str]) -> dict[str, str]:
    """What stands as NAME=VALUE, several in one or one by one.

    >>> pairs("--pin", ["item=CACHING,user=HOST_ONLY", "city=HBM_ONLY"])
    {'item': 'CACHING', 'user': 'HOST_ONLY', 'city': 'HBM_ONLY'}
    """
    found: dict[str, str] = {}
    for text in (part.strip() for one in given for part in one.split(",")):
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise InputError(f"{option} has {text!r}; write NAME=VALUE, as in {option} item=...")
        if name in found:
            raise InputError(f"{option} names {name!r} twice.")
        found[name] = value
    return found


def row_counts(given: list[str]) -> dict[str, int]:
    """Rows by table.

    >>> row_counts(["item=1_000"])
    {'item': 1000}
    """
    found = {}
    for name, text in pairs("--rows", given).items():
        if not text.replace("_", "").isdecimal() or not int(text):
            raise InputError(f"--rows {name}={text}; give a whole number from 1 on.")
        found[name] = int(text)
    return found


def what_if_sizes(text: str | None) -> Mapping[str, list[int]]:
    """Sizes to ask for, by what changes.

    >>> what_if_sizes("hbm=1KiB,2KiB")
    {'hbm': [1024, 2048]}
    """
    if text is None:
        return {}
    name, equals, sizes = text.partition("=")
    if name not in ("hbm", "host") or not equals:
        raise InputError(
            f"--what-if is {text!r}; write hbm= or host= and sizes, as in hbm=24GiB,32GiB."
        )
    return {name: [size_of("--what-if", part) for part in sizes.split(",")]}
