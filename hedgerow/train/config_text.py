"""The text of a configuration: what it says, and on which line each key stands."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.errors import ConfigError, ConfigMissingError

KeyPath = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where values come from: a file with its text, or options of a command line.

    `options` are keys that a command line has set, and by which option.

    >>> job = Origin("job.toml", "[train]\\nepochs = 2\\n", {("model", "dim"): "--dim"})
    >>> job.at(("train", "epochs")), job.at(("model", "dim")), job.at(("data",))
    ('job.toml:2: train.epochs', '--dim: model.dim', 'job.toml: data')
    """

    name: str
    text: str = ""
    options: Mapping[KeyPath, str] = field(default_factory=dict)

    def at(self, path: KeyPath) -> str:
        """How an error begins: the option, or the file and the line, and the key."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.options:
                return f"{self.options[path[:end]]}: {'.'.join(path)}"
        line = line_of(self.text, path)
        place = f"{self.name}:{line}" if line else self.name
        return f"{place}: {'.'.join(path)}" if path else place


def read_text(path: Path) -> tuple[dict[str, Any], Origin]:
    """What a TOML file (or JSON, by its ending) holds, and where it stands."""
    if not path.is_file():
        raise ConfigMissingError(f"{path} is no file; check the path of the configuration.")
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors put a mark in front
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text, at byte {error.start}.") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    if path.suffix == ".json":
        return _from_json(text, path), Origin(str(path))
    return _from_toml(text, path), Origin(str(path), text)


def _from_toml(text: str, path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r" \(at line (\d+), column \d+\)", str(error))
        line = int(found[1]) if found else text.count("\n") + 1  # "at end of document"
        rule = str(error).replace(found[0], "") if found else str(error)
        raise ConfigError(f"{path}:{line}: this is no TOML: {rule}.") from error
    except (ValueError, RecursionError) as error:  # a number or a nest that is too large to parse
        raise ConfigError(f"{path}: this cannot be read: {error}.") from error


def _from_json(text: str, path: Path) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}:{error.lineno}: this is no JSON: {error.msg}.") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: this cannot be read: {error}.") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: holds a {type(found).__name__}; it must be an object.")
    return found


def line_of(text: str, path: KeyPath) -> int:
    """The line of a key in TOML, or of the innermost table around it; 0 if there is none.

    The parser keeps no lines, so this asks it for ever longer beginnings of the text: the key
    stands in the statement that first makes it appear. Configurations are short.

    >>> line_of('[model]\\ndim = 8\\nhidden = [\\n 4]', ("model", "hidden"))
    3
    >>> line_of('[model]\\ndim = 8', ("model", "tables", "user"))
    1
    """
    lines, line, depth = text.split("\n"), 0, 0  # what TOML calls a line, and editors count
    begin = 0  # of the statement that is not complete yet
    for end in range(1, len(lines) + 1):
        try:
            document = tomllib.loads("\n".join(lines[:end]))
        except tomllib.TOMLDecodeError:
            continue  # inside a list or string of several lines
        found = _depth(document, path)
        if found > depth:
            line, depth = begin + 1, found
        begin = end
    return line


def _depth(document: Any, path: KeyPath) -> int:
    """How many keys of the path the document has."""
    for depth, key in enumerate(path):
        if not isinstance(document, dict) or key not in document:
            return depth
        document = document[key]
    return len(path)
