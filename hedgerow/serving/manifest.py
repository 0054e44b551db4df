"""The manifest of a bundle: what is in it, with which checksums."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ..core.errors import FileDamagedError, FileMissingError
from .bundle_files import read_bytes
from .model import TensorSpec
from .program import CONSTANTS, GRAPH, WEIGHTS

MANIFEST, ROWS, OLD_PROGRAM = "bundle.json", "rows", "dense.pt2"
PROGRAM_FILES = (GRAPH, WEIGHTS, CONSTANTS)
FORMAT, FORMAT_VERSION, OLD_VERSION = "hedgerow bundle", 2, 1
_LARGEST_BYTES = 2**26  # of a manifest: far more than a thousand tables need
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}(/[A-Za-z0-9_][A-Za-z0-9_.-]{0,199})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One version of one sub graph.

    `arguments` and `outputs` are None in a bundle of rows alone. `routing` says by which rule
    `servers` share the rows; with 0 servers, or on one of them, the rows are here (`holds_rows`).
    `files` has size and SHA-256 of every file but this one and its signature.
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
    format_version: int = FORMAT_VERSION

    def to_text(self) -> str:
        """JSON, its own checksum included."""
        body = {"format": FORMAT, **asdict(self)}
        return _text({**body, "checksum": _checksum(body)})

    @property
    def is_old(self) -> bool:
        """Whether release 0.1 wrote it, with a graph in a file of torch.export."""
        return self.format_version == OLD_VERSION


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a bundle, if it is whole."""
    return parse_manifest(folder / MANIFEST, manifest_bytes(folder))


def manifest_bytes(folder: Path) -> bytes:
    """The bytes of the manifest's file."""
    try:
        return read_bytes(folder / MANIFEST, _LARGEST_BYTES)
    except FileMissingError as error:
        raise FileMissingError(
            f"{folder} is no bundle: it has no {MANIFEST}. Name a folder that hr.serving.export "
            f"made: <base>/<sub graph>/<version>."
        ) from error


def parse_manifest(path: Path, data: bytes) -> Manifest:
    """The manifest in `data`, which came from `path`; every field is of its type."""
    body = _body(path, data)
    names = [field.name for field in fields(Manifest)]
    if sorted(body) != sorted(names):
        odd = sorted({*body} ^ {*names})
        raise FileDamagedError(f"{path} lacks, or has too much: {', '.join(odd)}.")
    for name, (rule, holds) in _RULES.items():
        if not holds(body[name]):
            raise FileDamagedError(f"{path}: {name} is {str(body[name])[:80]}; it must be {rule}.")
    return Manifest(**body)


def _body(path: Path, data: bytes) -> dict[str, Any]:
    try:
        text = data.decode()
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileDamagedError(f"{path} is damaged: {error}. Export again.") from error
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise FileDamagedError(f"{path} is no manifest of a bundle.")
    if body.get("format_version") not in (OLD_VERSION, FORMAT_VERSION):
        raise FileDamagedError(
            f"{path} has format_version {body.get('format_version')!r}; this release reads "
            f"{OLD_VERSION} and {FORMAT_VERSION}. Use the release that wrote it, or export again."
        )
    try:
        whole = _text(body) == text
        checksum = body.pop("checksum", None)
        whole = whole and checksum == _checksum(body)
    except (ValueError, RecursionError):  # halves of characters, or nested too deeply
        whole = False
    if not whole:
        raise FileDamagedError(f"{path} is damaged: its checksum is wrong. Export again.")
    del body["format"]
    return body


def _text(body: Mapping[str, Any]) -> str:
    return json.dumps(body, indent=1) + "\n"


def _checksum(body: Mapping[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _objects(value: Any) -> bool:
    """An object whose values are objects."""
    return isinstance(value, dict) and all(isinstance(one, dict) for one in value.values())


def _files(value: Any) -> bool:
    """Names that cannot leave the folder, each with size and checksum."""
    return _objects(value) and all(
        _FILE.fullmatch(name)
        and sorted(entry) == ["bytes", "sha256"]
        and type(entry["bytes"]) is int
        and isinstance(entry["sha256"], str)
        for name, entry in value.items()
    )


def _arguments(value: Any) -> bool:
    return value is None or (
        isinstance(value, list) and value != [] and all(isinstance(one, dict) for one in value)
    )


def _routing(value: Any) -> bool:
    return _objects(value) and all(sorted(one) == ["dist_type", "rows"] for one in value.values())


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


# Of each field what it must be, in words and as a test.
_RULES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "sub_graph": ("a name", lambda value: isinstance(value, str)),
    "version": ("a whole number", _count),
    "arguments": ("a list of objects, or null", _arguments),
    "outputs": ("an object of objects, or null", lambda value: value is None or _objects(value)),
    "tables": ("an object of objects", _objects),
    "routing": ("an object of objects with dist_type and rows", _routing),
    "holds_rows": ("true or false", lambda value: isinstance(value, bool)),
    "servers": ("a whole number", lambda value: _count(value) and value < 2**20),
    "multi_table": ("a name", lambda value: isinstance(value, str)),
    "made_with": ("an object", lambda value: isinstance(value, dict)),
    "files": ("an object of files in the bundle's own folder, with bytes and sha256", _files),
}


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
