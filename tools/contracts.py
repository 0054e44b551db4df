"""Checks what no linter knows: who may import whom, how large things may be, what stands where.

Run as `python tools/contracts.py [ROOT]`; prints every breach and exits 1 if there is one.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_FIELDS = 400, 60, 12

_BELOW_MONOLITH = (
    "core native kernels routing ops tables launch wire discovery sharding ps tiers planner nn "
    "sync serving data models train"
)
MAY_IMPORT = {
    "core": "",
    "native": "core",
    "kernels": "core",
    "routing": "core native kernels",
    "ops": "core native kernels routing",
    "tables": "core native kernels ops routing",
    "launch": "core",
    "wire": "core",
    "discovery": "core",
    "sharding": "core ops tables routing launch",
    "ps": "core ops tables routing discovery",
    "tiers": "core kernels ops tables",
    "planner": "core routing tables.config",
    "nn": "core ops tables routing sharding ps tiers planner launch",
    "sync": "core tables routing discovery wire",
    "serving": "core ops tables routing discovery wire sync nn",
    "data": "core",
    "models": "core nn",
    "train": "core nn data models launch sync tables",
    "monolith": _BELOW_MONOLITH,
    "bench": _BELOW_MONOLITH + " monolith cli",
    "cli": _BELOW_MONOLITH + " monolith bench",
    "": "core tables nn data models planner sync serving",  # hedgerow/__init__.py, the door
}
# (text, the only place it may stand, why)
BANNED = (
    ("os.environ", "hedgerow/launch/env.py", "the environment is read in one file"),
    ("os.getenv", "hedgerow/launch/env.py", "the environment is read in one file"),
    ("time.time(", "hedgerow/core/clock.py", "time comes in through a Clock"),
)


def _imports(path: Path, tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, dotted module below the package) of every import inside the package."""
    package = path.with_suffix("").parts[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            target = [*base[1:], *(node.module.split(".") if node.module else [])]
            for alias in node.names:
                yield node.lineno, ".".join([*target, alias.name])
        elif isinstance(node, ast.ImportFrom | ast.Import):
            names = (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else [alias.name for alias in node.names]
            )
            for name in names:
                if name.split(".")[0] == "hedgerow":
                    yield node.lineno, "absolute:" + name


def _import_breaches(path: Path, tree: ast.AST) -> Iterator[str]:
    folder = path.parts[1] if len(path.parts) > 2 else ""
    if folder not in MAY_IMPORT:
        yield f"{path}:1: folder {folder!r} is not in the import contract"
        return
    allowed = {folder, *MAY_IMPORT[folder].split()} - {""}
    for line, name in _imports(path, tree):
        if name.startswith("absolute:"):
            yield f"{path}:{line}: imports {name[9:]!r} by its full name; use a relative import"
        elif not any(name == a or name.startswith(a + ".") for a in allowed) and folder:
            yield f"{path}:{line}: {folder} may not import {name}"
        elif not folder and name.split(".")[0] not in allowed:
            yield f"{path}:{line}: the door may not import {name}"


def _size_breaches(path: Path, text: str, tree: ast.Module) -> Iterator[str]:
    if text.count("\n") > MAX_FILE_LINES:
        yield f"{path}:1: {text.count(chr(10))} lines; at most {MAX_FILE_LINES}"
    if ast.get_docstring(tree) is None:
        yield f"{path}:1: no first line that states the purpose"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno
            if lines > MAX_FUNCTION_LINES:
                at = f"{path}:{node.lineno}"
                yield f"{at}: {node.name} has {lines} lines; at most {MAX_FUNCTION_LINES}"
        elif isinstance(node, ast.ClassDef):
            is_data = any("dataclass" in ast.unparse(d) for d in node.decorator_list)
            fields = sum(isinstance(item, ast.AnnAssign) for item in node.body)
            if is_data and fields > MAX_FIELDS:
                yield f"{path}:{node.lineno}: {node.name} has {fields} fields; at most {MAX_FIELDS}"
        elif isinstance(node, ast.ExceptHandler) and all(
            isinstance(item, ast.Pass) for item in node.body
        ):
            yield f"{path}:{node.lineno}: an exception is swallowed in silence"


def breaches(root: Path) -> Iterator[str]:
    """Every breach below `root`, as `file:line: what`."""
    for full in sorted(root.glob("hedgerow/**/*.py")):
        path, text = full.relative_to(root), full.read_text()
        tree = ast.parse(text)
        yield from _import_breaches(path, tree)
        yield from _size_breaches(path, text, tree)
        for banned, place, why in BANNED:
            if banned in text and path.as_posix() != place:
                line = text[: text.index(banned)].count("\n") + 1
                yield f"{path}:{line}: {banned} outside {place}: {why}"
    for full in sorted([*root.glob("csrc/**/*.h"), *root.glob("csrc/**/*.cpp")]):
        lines = full.read_text().count("\n")
        if lines > MAX_FILE_LINES:
            yield f"{full.relative_to(root)}:1: {lines} lines; at most {MAX_FILE_LINES}"


def main() -> int:
    """Prints breaches; 1 if there are any."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent
    found = list(breaches(root))
    print("\n".join(found) if found else "contracts hold")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
