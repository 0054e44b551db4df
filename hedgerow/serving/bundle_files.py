"""The files of a bundle: its manifest, their checksums, and the signature of the manifest."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ..core.errors import ConfigError, FileDamagedError, FileMissingError, SaveError
from .model import TensorSpec
from .program import CONSTANTS, GRAPH, WEIGHTS

_CHUNK_BYTES = 1 << 22


def check_plain(folder: Path) -> None:
    """Raises if a folder contains anything but plain files and folders, such as a link or a FIFO.

    A link could make the server read other files. A FIFO could make it wait for ever.
    """
    for path in _entries(folder):
        mode = path.lstat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise FileDamagedError(
                f"{path} is no plain file; a bundle has no links, FIFOs or devices. Copy the "
                f"bundle with the contents of its files."
            )


def _entries(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _entries(path)


def read_bytes(path: Path, most: int | None = None) -> bytes:
    """Returns the bytes of a plain file, at most `most`; opens no link, FIFO or device."""
    with os.fdopen(_open(path), "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if most is not None and size > most:
            raise FileDamagedError(f"{path} has {size} bytes; no file of its kind is so large.")
        return file.readall() or b""


def _open(path: Path) -> int:
    try:
        # NONBLOCK: opening a FIFO would block until a writer opens it.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise FileMissingError(f"{path} is missing; the manifest names it.") from error
    except OSError as error:
        raise FileDamagedError(f"{path} cannot be read: {error.strerror}.") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise FileDamagedError(f"{path} is no plain file; the manifest names one.")
    return fd


def file_entry(path: Path) -> dict[str, Any]:
    """Returns the size and the checksum of a file."""
    with os.fdopen(_open(path), "rb", buffering=0) as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return {"bytes": os.fstat(file.fileno()).st_size, "sha256": sha256}


def entries_below(folder: Path) -> dict[str, dict[str, Any]]:
    """Returns size and checksum of every file below a folder, by relative path."""
    files = [path for path in _entries(folder) if path.is_file()]
    return {path.relative_to(folder).as_posix(): file_entry(path) for path in files}


def _copied(path: Path, to: Path) -> dict[str, Any]:
    """Copies a file, and returns size and checksum of the bytes that were written to `to`."""
    to.parent.mkdir(exist_ok=True)
    sha256 = hashlib.sha256()
    with os.fdopen(_open(path), "rb", buffering=0) as file, to.open("xb") as copy:
        while chunk := file.read(_CHUNK_BYTES):
            sha256.update(chunk)
            copy.write(chunk)
        return {"bytes": copy.tell(), "sha256": sha256.hexdigest()}


def checked_bytes(
    folder: Path,
    files: Mapping[str, Mapping[str, Any]],
    wanted: Collection[str],
    copies: Path | None = None,
) -> dict[str, bytes]:
    """Checks every file that the manifest names, and returns the bytes of the `wanted` ones.

    The bytes returned are the bytes checked: a file replaced later has no effect. With `copies`,
    all other files are copied to that folder while they are checked.
    """
    held: dict[str, bytes] = {}
    for name, entry in files.items():
        path = folder / name
        try:
            if name in wanted:
                held[name] = read_bytes(path, entry["bytes"])
                sha256 = hashlib.sha256(held[name]).hexdigest()
                found = {"bytes": len(held[name]), "sha256": sha256}
            else:
                found = file_entry(path) if copies is None else _copied(path, copies / name)
        except FileMissingError as error:
            raise FileDamagedError(str(error)) from error
        if found != dict(entry):
            raise FileDamagedError(
                f"{path} is damaged: {found['bytes']} bytes of SHA-256 {found['sha256']} where the "
                f"manifest says {entry.get('bytes')} of {entry.get('sha256')}. Export again, or "
                f"use an older version."
            )
    return held


SIGNATURE = "signature.json"
_ALGORITHM = "hmac-sha256"
_LEAST_BYTES, _MOST_BYTES = 32, 4096
_PURPOSE = b"hedgerow bundle\n"  # signatures of other things by the same key are not valid here


def new_key(path: Path) -> None:
    """Writes a new key, readable only by its owner; never replaces an existing file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     new_key(Path(folder) / "key")
    ...     len(read_key(Path(folder) / "key"))
    64
    """
    try:
        with open(path, "x", opener=_private) as file:
            file.write(secrets.token_hex(32) + "\n")
    except OSError as error:
        raise SaveError(f"{path} could not be written: {error.strerror or error}.") from error


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def read_key(path: str | Path) -> bytes:
    """Returns the key in a file: 32 to 4096 bytes of any kind, stripped of white space."""
    try:
        with Path(path).open("rb") as file:
            key = file.read(_MOST_BYTES + 1).strip()
    except OSError as error:
        raise FileMissingError(
            f"the key {path} cannot be read: {error.strerror or error}; make one with `hedgerow "
            f"keys bundle FILE`."
        ) from error
    if not _LEAST_BYTES <= len(key) <= _MOST_BYTES:
        raise ConfigError(
            f"the key {path} has {len(key)} bytes; it needs {_LEAST_BYTES} to {_MOST_BYTES}: make "
            f"one with `hedgerow keys bundle FILE`."
        )
    return key


def sign(folder: Path, key: bytes, manifest: bytes) -> None:
    """Writes the signature of a bundle next to its manifest."""
    plain = {"algorithm": _ALGORITHM, "signature": _signature(key, manifest)}
    (folder / SIGNATURE).write_text(json.dumps(plain) + "\n")


def check_signature(folder: Path, keys: tuple[bytes, ...], manifest: bytes) -> None:
    """Raises unless one of the keys signed the manifest's bytes."""
    try:
        plain = json.loads(read_bytes(folder / SIGNATURE, 1 << 16))
    except FileMissingError as error:
        raise FileDamagedError(
            f"{folder} is not signed, and only bundles of a trusted key are loaded here. Sign it: "
            f"`hedgerow export ... --sign KEY`, or export(..., key=KEY)."
        ) from error
    except (ValueError, RecursionError) as error:
        raise FileDamagedError(f"{folder / SIGNATURE} is no JSON: {error}.") from error
    given = plain.get("signature") if isinstance(plain, dict) else None
    if not isinstance(given, str) or plain.get("algorithm") != _ALGORITHM:
        raise FileDamagedError(f"{folder / SIGNATURE} is no {_ALGORITHM} signature.")
    found = given.encode(errors="replace")
    if not any(hmac.compare_digest(found, _signature(k, manifest).encode()) for k in keys):
        raise FileDamagedError(
            f"{folder} is not signed with a key that is trusted here. Sign it with one, or check "
            f"where it comes from."
        )


def _signature(key: bytes, manifest: bytes) -> str:
    return hmac.new(key, _PURPOSE + manifest, hashlib.sha256).hexdigest()


MANIFEST, ROWS, OLD_PROGRAM = "bundle.json", "rows", "dense.pt2"
PROGRAM_FILES = (GRAPH, WEIGHTS, CONSTANTS)
FORMAT, FORMAT_VERSION, OLD_VERSION = "hedgerow bundle", 2, 1
_LARGEST_BYTES = 2**26  # of a manifest; a thousand tables need far less
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}(/[A-Za-z0-9_][A-Za-z0-9_.-]{0,199})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleManifest:
    """The manifest of one version of one sub graph.

    `arguments` and `outputs` are None in a bundle that has only rows. `routing` has the rule by
    which `servers` share the rows. With 0 servers, and in a server's bundle, the bundle has rows
    (`holds_rows`). `files` has size and SHA-256 of every file except the manifest and its
    signature.
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
        """Returns the manifest as JSON, with its own checksum."""
        body = {"format": FORMAT, **asdict(self)}
        return _text({**body, "checksum": _checksum(body)})

    @property
    def is_old(self) -> bool:
        """Whether release 0.1 wrote the bundle; its graph is a file of torch.export."""
        return self.format_version == OLD_VERSION


def read_manifest(folder: Path) -> BundleManifest:
    """Returns the manifest of a bundle; raises if it is damaged."""
    return parse_manifest(folder / MANIFEST, manifest_bytes(folder))


def manifest_bytes(folder: Path) -> bytes:
    """Returns the bytes of the manifest file."""
    try:
        return read_bytes(folder / MANIFEST, _LARGEST_BYTES)
    except FileMissingError as error:
        raise FileMissingError(
            f"{folder} is no bundle: it has no {MANIFEST}. Name a folder that hr.serving.export "
            f"made: <base>/<sub graph>/<version>."
        ) from error


def parse_manifest(path: Path, data: bytes) -> BundleManifest:
    """Returns the manifest in `data`, after a check of each field; `path` is for errors."""
    body = _body(path, data)
    names = [field.name for field in fields(BundleManifest)]
    if sorted(body) != sorted(names):
        odd = sorted({*body} ^ {*names})
        raise FileDamagedError(f"{path} lacks, or has too much: {', '.join(odd)}.")
    for name, (rule, holds) in _RULES.items():
        if not holds(body[name]):
            raise FileDamagedError(f"{path}: {name} is {str(body[name])[:80]}; it must be {rule}.")
    return BundleManifest(**body)


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
    except (ValueError, RecursionError):  # lone surrogates, or JSON nested too deeply
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
    """Returns whether a value is an object whose values are objects."""
    return isinstance(value, dict) and all(isinstance(one, dict) for one in value.values())


def _files(value: Any) -> bool:
    """Returns whether a value has file names inside the folder, each with size and checksum."""
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


# For each field: the rule in words, and its check.
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
    """Returns types, shapes and cuts (see find_cuts) of the outputs, for JSON."""
    return {
        name: {
            "dtype": str(spec.dtype).removeprefix("torch."),
            "shape": list(spec.shape),
            "cut": cuts[name] if cuts else None,
        }
        for name, spec in specs.items()
    }
