"""What every client asks and must be answered: arrays in files, which need numpy alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

MODEL, VERSION = "entry", 3
DEFAULT, LOOKUP = "serving_default", "lookup"
MOST = 1e-6  # between the model that was trained and an answer about it

Arrays = Mapping[str, Any]


def write(folder: Path, signature: str, inputs: Arrays, outputs: Arrays) -> None:
    """Keeps a question and its answer."""
    for kind, arrays in (("inputs", inputs), ("outputs", outputs)):
        np.savez(folder / f"{signature}-{kind}.npz", **arrays)


def read(folder: str, signature: str = DEFAULT) -> tuple[dict[str, Any], dict[str, Any]]:
    """A question and its answer."""
    found = []
    for kind in ("inputs", "outputs"):
        with np.load(Path(folder) / f"{signature}-{kind}.npz") as file:
            found.append({name: file[name] for name in file.files})
    return found[0], found[1]


def check(found: Arrays, expected: Arrays) -> None:
    """Ends the client unless every output is there, of its type and shape, and right."""
    if sorted(found) != sorted(expected):
        raise SystemExit(f"outputs {sorted(found)}, expected {sorted(expected)}")
    for name, value in expected.items():
        got = np.asarray(found[name])
        if (got.dtype, got.shape) != (value.dtype, value.shape):
            raise SystemExit(f"{name}: {got.dtype} {got.shape}, not {value.dtype} {value.shape}")
        error = np.abs(got - value).max(initial=0)
        if not error <= MOST:
            raise SystemExit(f"{name} is off by {error}; at most {MOST}")


def expect(what: str, found: object, wanted: object) -> None:
    """Ends the client unless these are equal."""
    if found != wanted:
        raise SystemExit(f"{what}: {found!r}, expected {wanted!r}")
