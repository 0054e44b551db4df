"""Table configurations from a JSON file."""

from __future__ import annotations

import json
from pathlib import Path

from ..core.errors import ConfigError
from ..tables.config import TableConfig


def read_configs(path: Path) -> list[TableConfig]:
    """The tables of a file: a list of what `TableConfig.to_dict()` gives."""
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read as JSON: {error}.") from error
    if not isinstance(document, list):
        raise ConfigError(f"{path} holds no list; it must be a list of TableConfig.to_dict().")
    return [TableConfig.from_dict(values) for values in document]
