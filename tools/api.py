"""Prints the public surface as JSON; `make api` records it in tests/golden/api.json."""

from __future__ import annotations

import inspect
import json
from types import ModuleType
from typing import Any

import hedgerow as hr


def surface(door: ModuleType = hr, prefix: str = "") -> dict[str, str]:
    """Every public name and public method with its signature; a door inside the door with its own.

    Without prefix: the whole package.
    """
    found: dict[str, str] = {}
    for name in sorted(n for n in dir(door) if not n.startswith("__")):
        value, path = getattr(door, name), prefix + name
        if inspect.ismodule(value):
            inner = {n: getattr(value, n) for n in value.__all__}
            found |= surface(_only(inner), f"{path}.")
        elif inspect.isclass(value) and issubclass(value, Exception):
            found[path] = " < ".join(base.__name__ for base in value.__mro__)
        else:
            found |= _signatures(path, value)
    return found


def _only(names: dict[str, object]) -> ModuleType:
    module = ModuleType("door")
    vars(module).update(names)
    return module


def _signatures(path: str, value: Any) -> dict[str, str]:
    found = {path: str(inspect.signature(value))}
    if inspect.isclass(value):
        for method, function in inspect.getmembers(value, inspect.isfunction):
            if not method.startswith("_"):
                found[f"{path}.{method}"] = str(inspect.signature(function))
    return found


if __name__ == "__main__":
    print(json.dumps(surface(), indent=1))
