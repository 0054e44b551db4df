"""Prints the public surface as JSON; `make api` records it in tests/golden/api.json."""

from __future__ import annotations

import inspect
import json

import hedgerow as hr


def surface() -> dict[str, str]:
    """Every public name and public method with its signature."""
    found: dict[str, str] = {}
    for name in sorted(n for n in dir(hr) if not n.startswith("__")):
        value = getattr(hr, name)
        if inspect.isclass(value) and issubclass(value, Exception):
            found[name] = " < ".join(base.__name__ for base in value.__mro__)
            continue
        found[name] = str(inspect.signature(value))
        if inspect.isclass(value):
            for method, function in inspect.getmembers(value, inspect.isfunction):
                if not method.startswith("_"):
                    found[f"{name}.{method}"] = str(inspect.signature(function))
    return found


if __name__ == "__main__":
    print(json.dumps(surface(), indent=1))
