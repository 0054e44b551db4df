"""Paths that users give: of this machine's file system, and of no other place yet."""

from __future__ import annotations

import os
import re
from os import PathLike, fspath
from pathlib import Path

from .errors import InputError

# pathlib writes the two slashes of a URL as one. One letter before the colon is a drive.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def local_path(path: str | PathLike[str]) -> Path:
    """`path` as a `Path`; the URL of another place is refused, not made a folder of that name.

    >>> local_path("runs/first").as_posix()
    'runs/first'
    >>> local_path("s3://bucket/run")
    Traceback (most recent call last):
    hedgerow.core.errors.InputError: 's3://bucket/run' is a URL; paths are of this machine's file \
system so far: mount the place, or copy the files here, and give that path.
    """
    text = fspath(path)
    if "\0" in os.fsdecode(text):
        raise InputError(f"{text!r} has a null character, which no path may have; remove it.")
    if isinstance(text, str) and _URL.match(text):
        raise InputError(
            f"{text!r} is a URL; paths are of this machine's file system so far: mount the place, "
            f"or copy the files here, and give that path."
        )
    return Path(path)
