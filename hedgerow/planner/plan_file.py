"""The file format of plans: JSON that is validated when read, with a fingerprint of the inputs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, NoReturn

from ..core import checks
from ..core.errors import FileDamagedError, FileMissingError, HedgerowError, InputError
from ..core.files import write_whole
from ..routing.router import SUPPORTED_DIST_TYPES
from .json_values import (
    choice_list,
    choice_of,
    readable,
    reserve_of,
    sha256,
    spec_dict,
    spec_of,
    topology_dict,
    topology_of,
    unknown_in,
    with_unknown,
)
from .plan import SHARDINGS, Forecast, Placed, Plan, PlanInputs, PlanSettings, Solved, Usable
from .problem.options import Mode, Variant
from .problem.table_spec import TableSpec
from .problem.topology import Topology
from .sizes.layout import LAYOUTS


def inputs_dict(inputs: PlanInputs) -> dict[str, Any]:
    """Returns the tables with their options, and all settings, as a dict."""
    lines = []
    for spec in inputs.specs:
        line = spec_dict(spec)
        if spec.name in inputs.stats_digests:
            line["stats_sha256"] = inputs.stats_digests[spec.name]
        line["options"] = [choice_list(choice) for choice in inputs.choices[spec.name]]
        lines.append(line)
    settings = {**asdict(inputs.settings), "factors": list(inputs.settings.factors)}
    return {
        "settings": settings,
        "tables": lines,
        "zipf_ms": dict(inputs.zipf_ms),
        "notes": list(inputs.notes),
    }


def inputs_of(values: Any) -> PlanInputs:
    """Returns the inputs from their dict form. Key samples are not stored."""
    if not isinstance(values, dict) or not isinstance(values.get("tables"), list):
        raise FileDamagedError("inputs must be an object with tables, or not there.")
    lines = values["tables"]
    for line in lines:
        if not isinstance(line, dict) or not isinstance(line.get("options"), list):
            raise FileDamagedError("inputs.tables must be objects with options.")
    try:
        specs = tuple(spec_of(line) for line in lines)
        settings = _settings(values.get("settings"))
        zipf_ms = {str(key): float(ms) for key, ms in dict(values.get("zipf_ms", {})).items()}
        notes = tuple(str(note) for note in values.get("notes", ()))
    except (TypeError, ValueError) as error:
        raise FileDamagedError(f"inputs: {error}") from error
    return PlanInputs(
        specs=specs,
        settings=settings,
        choices={line["name"]: tuple(map(choice_of, line["options"])) for line in lines},
        stats_digests={
            line["name"]: str(line["stats_sha256"]) for line in lines if "stats_sha256" in line
        },
        zipf_ms=zipf_ms,
        notes=notes,
    )


def _settings(values: Any) -> PlanSettings:
    if not isinstance(values, Mapping):
        raise FileDamagedError("inputs.settings must be an object.")
    given = {f.name: values[f.name] for f in fields(PlanSettings) if f.name in values}
    given["factors"] = tuple(given.get("factors", ()))
    settings = PlanSettings(**given)
    if not isinstance(settings.layout, str) or settings.layout not in LAYOUTS:
        raise ValueError(f"settings.layout is {settings.layout!r}; known: {', '.join(LAYOUTS)}")
    checks.whole("settings", "batch", settings.batch, least=1)
    if not 0 < settings.time_limit < float("inf"):
        raise ValueError(f"settings.time_limit is {settings.time_limit!r}; it must be above 0")
    return settings


FORMAT, VERSION = "placement-plan", 1
_SOLVER = ("status", "lower_bound_ms", "total_ms", "gap", "seconds", "prices")
_PRICES = ("hbm_ms_per_gib", "ddr_ms_per_gib_machine")
_SIZES = ("rows_per_rank", "row_bytes", "hbm_bytes", "ddr_bytes")
_TABLE = ("name", "mode", "load_factor", "sharding", "rank", "dist_type", *_SIZES)
_TABLE_KNOWN = (*_TABLE, "expected_hit_rate", "expected_ms", "group")


def plan_dict(plan: Plan) -> dict[str, Any]:
    """Returns the plan as the dict that its file holds."""
    solver = plan.solver
    prices = {name: getattr(solver, name) for name in _PRICES}
    found = {
        "format": FORMAT,
        "version": VERSION,
        "fingerprint": plan.fingerprint,
        "topology": topology_dict(plan.topology),
        "budget": {
            "hbm_per_device": plan.budget.hbm_per_device,
            "ddr_per_machine": plan.budget.ddr_per_machine,
            "reserve": asdict(plan.budget.reserve),
        },
        "solver": {
            **{name: getattr(solver, name) for name in _SOLVER if name != "prices"},
            "prices": prices,
        },
        "calibration": dict(plan.calibration),
        "tables": [_table_dict(table) for table in plan.tables],
    }
    if plan.inputs is not None:
        found["inputs"] = inputs_dict(plan.inputs)
    return with_unknown(found, plan.extra)


def _table_dict(table: Placed) -> dict[str, Any]:
    place: dict[str, Any] = {"sharding": table.sharding}
    if table.rank is not None:
        place["rank"] = table.rank
    return {
        "name": table.name,
        "mode": str(table.mode),
        "load_factor": table.load_factor,
        **place,
        "dist_type": table.dist_type,
        **{name: getattr(table, name) for name in _SIZES},
        "expected_hit_rate": table.forecast.hit_rate,
        "expected_ms": table.forecast.ms,
        "group": table.group,
        **table.extra,
    }


def write_plan(plan: Plan, path: Path) -> None:
    """Writes the plan to a temporary file, then renames it to `path`."""
    write_whole(path, readable(plan_dict(plan)) + "\n")


def read_plan(path: Path) -> Plan:
    """Reads a plan and checks every field."""
    if not path.is_file():
        raise FileMissingError(f"{path} is no file; `hedgerow plan ... --out {path}` writes one.")
    try:
        values = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise FileDamagedError(f"{path} is no JSON: {error}.") from error
    with _told(path):
        return plan_of(values)


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Adds the file name to errors raised in the block."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except HedgerowError as error:
        raise FileDamagedError(f"{path}: {error}") from error


def plan_of(values: Any) -> Plan:
    """Returns a plan from the dict of its file."""
    top = _section(values, "the plan")
    if top.get("format") != FORMAT:
        raise FileDamagedError(f"format is {top.get('format')!r}; a plan has {FORMAT!r}.")
    version = _number(top, "version", "the plan", int)
    if version > VERSION:
        raise InputError(
            f"version is {version}; this hedgerow reads plans up to version {VERSION}: upgrade it, "
            f"or plan again with this one."
        )
    parts = {name: _section(top.get(name), name) for name in ("topology", "budget", "solver")}
    lines = top.get("tables")
    if not isinstance(lines, list):
        raise FileDamagedError(f"tables is a {type(lines).__name__}; it must be a list.")
    plan = Plan(
        fingerprint=_word(top, "fingerprint", "the plan"),
        topology=topology_of(parts["topology"]),
        budget=_usable(parts["budget"]),
        solver=_solved(parts["solver"]),
        calibration=_section(top.get("calibration"), "calibration"),
        tables=tuple(_placed(line, number) for number, line in enumerate(lines)),
        inputs=inputs_of(top["inputs"]) if top.get("inputs") is not None else None,
    )
    _check_whole(plan)
    # Unknown fields of tables stay with each table, because a table may be copied to another plan.
    others = {name: value for name, value in top.items() if name not in ("tables", "inputs")}
    if plan.inputs is not None:
        others["inputs"] = top["inputs"]
    return replace(plan, extra=unknown_in(others, plan_dict(plan)))


def _check_whole(plan: Plan) -> None:
    """Raises unless table names are unique, ranks exist, and options and tables match."""
    if len(set(plan.names)) != len(plan.names):
        twice = next(n for n in plan.names if plan.names.count(n) > 1)
        raise FileDamagedError(f"two tables are named {twice!r}.")
    for table in plan.tables:
        if table.rank is not None and not 0 <= table.rank < plan.topology.world:
            raise FileDamagedError(
                f"table {table.name!r}: rank is {table.rank} of {plan.topology.world} ranks."
            )
    if plan.inputs is not None and set(plan.inputs.by_name) != set(plan.names):
        odd = sorted(set(plan.inputs.by_name) ^ set(plan.names))
        raise FileDamagedError(f"inputs and tables differ in {', '.join(odd)}.")


def _usable(values: Mapping[str, Any]) -> Usable:
    return Usable(
        hbm_per_device=_number(values, "hbm_per_device", "budget", int),
        ddr_per_machine=_number(values, "ddr_per_machine", "budget", int),
        reserve=reserve_of(_section(values.get("reserve"), "budget.reserve")),
    )


def _solved(values: Mapping[str, Any]) -> Solved:
    prices = _section(values.get("prices"), "solver.prices")
    numbers = {n: _number(values, n, "solver") for n in ("lower_bound_ms", "total_ms")}
    waits = {n: _number(values, n, "solver") if n in values else 0.0 for n in ("gap", "seconds")}
    return Solved(
        status=_word(values, "status", "solver"),
        **numbers,
        **waits,
        **{name: _number(prices, name, "solver.prices") for name in _PRICES},
    )


def _placed(values: Any, number: int) -> Placed:
    at = f"tables[{number}]"
    line = _section(values, at)
    at = f"table {_word(line, 'name', at)!r}"
    rank = line.get("rank")
    return Placed(
        name=line["name"],
        variant=_variant(line, at),
        dist_type=_one_of(line, "dist_type", at, SUPPORTED_DIST_TYPES),
        sharding=_one_of(line, "sharding", at, SHARDINGS),
        rank=None if rank is None else _number(line, "rank", at, int),
        group=None if line.get("group") is None else _word(line, "group", at),
        forecast=Forecast(_number(line, "expected_ms", at), _number(line, "expected_hit_rate", at)),
        extra={name: value for name, value in line.items() if name not in _TABLE_KNOWN},
        **{name: _number(line, name, at, int) for name in _SIZES},
    )


def _variant(line: Mapping[str, Any], at: str) -> Variant:
    variant = Variant(Mode(_one_of(line, "mode", at, list(Mode))), _word(line, "load_factor", at))
    try:
        share = variant.share
    except (ValueError, ZeroDivisionError) as error:
        raise FileDamagedError(f"{at}: load_factor is {variant.load_factor!r}.") from error
    ends = {Mode.HBM_ONLY: share == 1, Mode.HOST_ONLY: share == 0}
    if not ends.get(variant.mode, 0 < share < 1):
        raise FileDamagedError(
            f"{at}: load_factor is {variant.load_factor!r} and mode {variant.mode}; HBM_ONLY has "
            f"1, HOST_ONLY 0, HYBRID and CACHING a share between."
        )
    return variant


def _section(values: Any, at: str) -> Mapping[str, Any]:
    if not isinstance(values, dict):
        raise FileDamagedError(f"{at} is a {type(values).__name__}; it must be an object.")
    return values


def _word(values: Mapping[str, Any], name: str, at: str) -> str:
    value = values.get(name)
    if not isinstance(value, str) or not value:
        raise FileDamagedError(f"{at}: {name} is {value!r}; it must be a text.")
    return value


def _one_of(values: Mapping[str, Any], name: str, at: str, known: Any) -> str:
    word = _word(values, name, at)
    if word not in known:
        raise FileDamagedError(f"{at}: {name} is {word!r}; known: {', '.join(known)}.")
    return word


def _number(values: Mapping[str, Any], name: str, at: str, kind: Any = (int, float)) -> Any:
    value: Any = values.get(name)
    if not isinstance(value, kind) or isinstance(value, bool) or not 0 <= value < 2**63:
        whole = "a whole number" if kind is int else "a number"
        raise FileDamagedError(f"{at}: {name} is {value!r}; it must be {whole} from 0 on.")
    return value


def fingerprint(
    specs: Sequence[TableSpec],
    topology: Topology,
    calibration: Mapping[str, Any],
    stats_digests: Mapping[str, str] | None = None,
) -> str:
    """Returns the SHA-256 of the arguments as canonical JSON. The order of tables does not matter.

    `stats_digests` replaces samples that a file did not store.

    >>> tables = [TableSpec(name=name, rows=9, dim=2) for name in "ab"]
    >>> world = Topology(world=1, hbm_per_device=1)
    >>> fingerprint(tables, world, {}) == fingerprint(tables[::-1], world, {})
    True
    """
    lines = []
    for spec in sorted(specs, key=lambda spec: spec.name):
        line = spec_dict(spec)
        if spec.stats is None and spec.name in (stats_digests or {}):
            line["stats_sha256"] = (stats_digests or {})[spec.name]
        lines.append(line)
    made_for = {
        "tables": lines,
        "topology": topology_dict(topology),
        "calibration": {n: calibration.get(n) for n in ("device", "parameters")},
    }
    return sha256(made_for)
