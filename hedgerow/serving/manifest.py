"""The manifest of a bundle: what is in it, with which checksums."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ..core.errors import FileDamagedError, FileMissingError
from .model import TensorSpec

MANIFEST, PROGRAM, ROWS = "bundle.json", "dense.pt2", "rows"
FORMAT, FORMAT_VERSION = "hedgerow bundle", 1
_LARGEST_BYTES = 2**26  # of a manifest: far more than a thousand tables need


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One version of one sub graph.

    `arguments` and `outputs` are None in a bundle of rows alone. `routing` says by which rule
    `servers` share the rows; with 0 servers, or on one of them, the rows are here (`holds_rows`).
    `files` has size and SHA-256 of every file but those of rows, which have a manifest of their
    own, and this one.
    """

    sub_graph: str
    version: int
    arguments: Sequence[Mapping[str, Any]] | None
    outputs: Mapping[str, Any] | None
    tables: Mapping[str, Mapping[str, Any]]
    routing: Mapping[str, Mapping[str, Any]]
    holds_rows: bool
    servers: int
    multi_table: str
    made_with: Mapping[str, str]
    files: Mapping[str, Mapping[str, Any]]

    def to_text(self) -> str:
        """JSON, its own checksum included."""
        body = {"format": FORMAT, "format_version": FORMAT_VERSION, **asdict(self)}
        return _text({**body, "checksum": _checksum(body)})


def file_entry(path: Path) -> dict[str, Any]:
    """Size and checksum of a file."""
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": sha256}


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a bundle, if it is whole."""
    path = folder / MANIFEST
    if not path.is_file():
        raise FileMissingError(
            f"{folder} is no bundle: it has no {MANIFEST}. Name a folder that hr.serving.export "
            f"made: <base>/<sub graph>/<version>."
        )
    body = _body(path)
    names = [field.name for field in fields(Manifest)]
    if sorted(body) != sorted(names):
        odd = sorted({*body} ^ {*names})
        raise FileDamagedError(f"{path} lacks, or has too much: {', '.join(odd)}.")
    return Manifest(**body)


def _body(path: Path) -> dict[str, Any]:
    if path.stat().st_size > _LARGEST_BYTES:
        raise FileDamagedError(f"{path} has {path.stat().st_size} bytes; no manifest is so large.")
    try:
        text = path.read_text()
        body = json.loads(text)
    except ValueError as error:
        raise FileDamagedError(f"{path} is damaged: {error}. Export again.") from error
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise FileDamagedError(f"{path} is no manifest of a bundle.")
    if body.get("format_version") != FORMAT_VERSION:
        raise FileDamagedError(
            f"{path} has format_version {body.get('format_version')!r}; this release reads "
            f"{FORMAT_VERSION}. Use the release that wrote it, or export again."
        )
    rewritten = _text(body)
    if body.pop("checksum", None) != _checksum(body) or rewritten != text:
        raise FileDamagedError(f"{path} is damaged: its checksum is wrong. Export again.")
    del body["format"], body["format_version"]
    return body


def _text(body: Mapping[str, Any]) -> str:
    return json.dumps(body, indent=1) + "\n"


def _checksum(body: Mapping[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def check_files(folder: Path, manifest: Manifest) -> None:
    """Every file that the manifest names is there, byte for byte."""
    for name, wanted in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise FileDamagedError(f"{path} is missing; the manifest names it.")
        found = file_entry(path)
        if found != dict(wanted):
            raise FileDamagedError(
                f"{path} is damaged: {found['bytes']} bytes of SHA-256 {found['sha256']} where the "
                f"manifest says {wanted.get('bytes')} of {wanted.get('sha256')}. Export again, or "
                f"use an older version."
            )


def plain_outputs(
    specs: Mapping[str, TensorSpec], cuts: Mapping[str, str] | None
) -> dict[str, Any]:
    """Outputs and how they are cut where requests ran together, fit for JSON."""
    return {
        name: {
            "dtype": str(spec.dtype).removeprefix("torch."),
            "shape": list(spec.shape),
            "cut": cuts[name] if cuts else None,
        }
        for name, spec in specs.items()
    }
