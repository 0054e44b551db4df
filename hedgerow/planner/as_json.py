"""JSON that people can read and hashes can rely on."""

from __future__ import annotations

import hashlib
import json
from typing import Any

_WIDTH = 160


def canonical(value: Any) -> str:
    """One text for one value: sorted keys, no spaces; numbers that JSON has not are refused.

    >>> canonical({"b": 1, "a": [1.5, None]})
    '{"a":[1.5,null],"b":1}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def sha256(value: Any) -> str:
    """Of the canonical text.

    >>> sha256({})[:8]
    '44136fa3'
    """
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def readable(value: Any, indent: int = 0) -> str:
    """Indented, with what fits a line on one line.

    >>> print(readable({"sizes": [1, 2], "tables": [{"name": "a"}, {"name": "b"}]}))
    {
     "sizes": [1, 2],
     "tables": [
      {"name": "a"},
      {"name": "b"}
     ]
    }
    """
    flat = json.dumps(value, allow_nan=False)
    if not isinstance(value, dict | list) or not value or _fits(value, flat, indent):
        return flat
    space = " " * (indent + 1)
    if isinstance(value, dict):
        parts = [f"{json.dumps(str(k))}: {readable(v, indent + 1)}" for k, v in value.items()]
    else:
        parts = [readable(item, indent + 1) for item in value]
    ends = "{}" if isinstance(value, dict) else "[]"
    return f"{ends[0]}\n{space}" + f",\n{space}".join(parts) + f"\n{' ' * indent}{ends[1]}"


def _fits(value: Any, flat: str, indent: int) -> bool:
    """Short, and nothing inside that has an inside."""
    inner = value.values() if isinstance(value, dict) else value
    return len(flat) + indent <= _WIDTH and not any(isinstance(v, dict | list) for v in inner)
