"""Fields of a file that this version does not know: kept at every depth, and written back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def unknown_in(values: Any, known: Any) -> Any:
    """What `values` has beyond `known`, in the same shape; empty if there is nothing.

    >>> unknown_in({"a": {"b": 1, "new": 2}, "c": [{"x": 1}]}, {"a": {"b": 1}, "c": [{"x": 1}]})
    {'a': {'new': 2}}
    """
    if isinstance(values, Mapping) and isinstance(known, Mapping):
        parts = {n: unknown_in(v, known[n]) for n, v in values.items() if n in known}
        new = {n: v for n, v in values.items() if n not in known}
        return {**{n: part for n, part in parts.items() if part}, **new}
    if isinstance(values, list) and isinstance(known, list) and len(values) == len(known):
        lines = [unknown_in(v, k) for v, k in zip(values, known, strict=True)]
        return lines if any(lines) else []
    return {}


def with_unknown(known: Any, unknown: Any) -> Any:
    """Both together again.

    >>> with_unknown({"a": {"b": 1}}, {"a": {"new": 2}})
    {'a': {'b': 1, 'new': 2}}
    """
    if isinstance(known, Mapping) and isinstance(unknown, Mapping):
        both = {n: with_unknown(known[n], v) if n in known else v for n, v in unknown.items()}
        return {**known, **both}
    if isinstance(known, list) and isinstance(unknown, list) and len(known) == len(unknown):
        return [with_unknown(k, u) for k, u in zip(known, unknown, strict=True)]
    return known
