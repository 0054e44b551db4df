"""The section `inputs` of a plan's file: what the plan was made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from ..core import checks
from ..core.errors import FileDamagedError
from .plan_inputs import PlanInputs, PlanSettings
from .plan_values import choice_list, choice_of, spec_dict, spec_of
from .sizes.layout import LAYOUTS


def inputs_dict(inputs: PlanInputs) -> dict[str, Any]:
    """Tables with their options, and all settings."""
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
    """Back, without samples."""
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
