"""Who signed a bundle: an HMAC of its manifest, which has the checksums of all other files."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from pathlib import Path

from ..core.errors import ConfigError, FileDamagedError, FileMissingError, SaveError
from .bundle_files import read_bytes

SIGNATURE = "signature.json"
_ALGORITHM = "hmac-sha256"
_LEAST_BYTES, _MOST_BYTES = 32, 4096
_PURPOSE = b"hedgerow bundle\n"  # so that a key that signs other things, too, does no harm


def new_key(path: Path) -> None:
    """Writes a new key that only its owner can read; a file that is there is never replaced.

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
    """The key in a file: 32 to 4096 bytes of any kind, without white space at its ends."""
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
    """Writes the signature of a bundle beside its manifest."""
    plain = {"algorithm": _ALGORITHM, "signature": _signature(key, manifest)}
    (folder / SIGNATURE).write_text(json.dumps(plain) + "\n")


def check_signature(folder: Path, keys: tuple[bytes, ...], manifest: bytes) -> None:
    """Raises unless one of the keys signed these bytes of the manifest."""
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
