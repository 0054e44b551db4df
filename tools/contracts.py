"""Checks what no linter knows: who may import whom, how large things may be, what stands where.

Run as `python tools/contracts.py [ROOT]`; prints every breach and exits 1 if there is one.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_FIELDS = 800, 60, 12

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
    "wire": "core native",
    "discovery": "core",
    "sharding": "core ops tables routing launch",
    "ps": "core ops tables tiers routing discovery",
    "tiers": "core native kernels ops tables",
    "planner": "core routing tables.config",
    "nn": "core ops tables routing sharding ps tiers planner launch",
    "sync": "core tables routing discovery wire",
    "serving": "core ops tables tiers routing discovery wire sync nn",
    "data": "core native",
    "models": "core nn tables",
    "train": "core nn data models launch sync serving tables",
    "calibration": "core nn planner tables tiers",
    "monolith": _BELOW_MONOLITH,
    "cli": _BELOW_MONOLITH + " monolith calibration",
    # hedgerow/__init__.py, the door; launch, to tell core which process this is; hedgerow/errors.py
    "": "core tables tiers nn data models planner sync serving launch errors ps wire",
    "__main__": "cli",  # `python -m hedgerow`
    "benchmarks": _BELOW_MONOLITH + " monolith calibration cli",
    "benchmarks.peers": "",  # run by other environments, which have nothing else of ours
}
# What may be imported when a module loads; anything else is optional and loads inside a function.
ALWAYS_THERE = {"numpy", "torch", *sys.stdlib_module_names}
# The one file that imports an optional library when it loads; only what cannot do without does.
LOADS_OPTIONAL = {
    "hedgerow/kernels/toolchain.py": "triton",
    "hedgerow/wire/pool.py": "google",  # protobuf: one pool a process, so made by an import
}
# There too, but `import hedgerow` must not pay for them.
AT_LOAD = {"cli": {"typer", "rich"}, "benchmarks": {"typer", "rich"}}
# The one file of the package that may import the benchmarks, which are not installed with it.
LOADS_BENCHMARKS = "hedgerow/cli/bench.py"
# (module, name) -> the only file that may use it, and why
BANNED = {
    ("os", "environ"): ("hedgerow/launch/env.py", "the environment is read in one file"),
    ("os", "getenv"): ("hedgerow/launch/env.py", "the environment is read in one file"),
    ("time", "time"): ("hedgerow/core/clock.py", "time comes in through a Clock"),
    ("importlib", "import_module"): ("hedgerow/__init__.py", "imports are visible to this script"),
}


# What holds rows, and the modules of nn that make one, a placement each; the rest of nn knows
# `ModuleStore` alone. A name that only types use is no import.
STORES = {
    *("HostTables", "DeviceTables", "TierTables", "AllToAllTables", "ServerTables"),
    *("HostTable", "DeviceTable"),
}
BUILDERS = {"assemble", "distribute", "local_stores", "server_shards", "tier_stores"}


def _inside(path: Path, node: ast.ImportFrom) -> Iterator[str]:
    """Dotted names below its package that a relative import brings in."""
    package = path.with_suffix("").parts[:-1]
    base = package[: len(package) - node.level + 1]
    target = [*base[1:], *(node.module.split(".") if node.module else [])]
    for alias in node.names:
        yield ".".join([*target, alias.name])


def _packages(place: str) -> set[str]:
    """Packages of ours that a file may import when it loads."""
    return {"hedgerow"} if place == "benchmarks" else set()


def _outside(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""]


def _place(path: Path) -> str:
    """The line of the contract that a file falls under."""
    if path.name == "__main__.py" and len(path.parts) == 2:
        return "__main__"
    if path.parts[0] == "benchmarks":
        return "benchmarks.peers" if path.parts[1] == "peers" else "benchmarks"
    return path.parts[1] if len(path.parts) > 2 else ""


def _may_import(place: str, path: Path, name: str) -> str | None:
    """Why a file may not import this absolute name of ours; None if it may."""
    top, _, inner = name.partition(".")
    if top == path.parts[0]:
        return f"imports {name!r} in full; use a relative import"
    if top == "benchmarks" and path.as_posix() != LOADS_BENCHMARKS:
        return f"{place} may not import {name}"
    allowed = MAY_IMPORT[place].split()
    if top == "hedgerow" and (not allowed or (inner and inner.split(".")[0] not in allowed)):
        return f"{place} may not import {inner or name}"
    return None


def _import_breaches(path: Path, tree: ast.Module) -> Iterator[str]:
    folder = _place(path)
    if folder not in MAY_IMPORT:
        yield f"{path}:1: folder {folder!r} is not in the import contract"
        return
    if not folder and path.name not in ("__init__.py", "errors.py"):
        yield f"{path}:1: only __init__.py and errors.py may lie beside the folders"
    allowed = {folder.removeprefix("benchmarks."), *MAY_IMPORT[folder].split()} - {""}
    there = (
        ALWAYS_THERE
        | {LOADS_OPTIONAL.get(path.as_posix(), "")}
        | AT_LOAD.get(folder.split(".")[0], set())
    )
    at_load = {id(node) for node in ast.walk(tree)} - {
        id(inner)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(function)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            for name in _inside(path, node) if folder != "benchmarks" else ():
                if not any(name == a or name.startswith(a + ".") for a in allowed):
                    yield f"{path}:{node.lineno}: {folder or 'the door'} may not import {name}"
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for name in _outside(node):
                ours = name.split(".")[0] in ("hedgerow", "benchmarks")
                why = _may_import(folder, path, name) if ours else None
                if why is not None:
                    yield f"{path}:{node.lineno}: {why}"
                elif name.split(".")[0] not in there | _packages(folder) and id(node) in at_load:
                    yield f"{path}:{node.lineno}: {name} is optional; import it where it is used"


def _banned_uses(tree: ast.AST) -> Iterator[tuple[int, tuple[str, str]]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield node.lineno, (node.value.id, node.attr)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                yield node.lineno, (node.module or "", alias.name)


def _place_breaches(path: Path, tree: ast.AST) -> Iterator[str]:
    for line, use in _banned_uses(tree):
        place, why = BANNED.get(use, ("", ""))
        if why and path.as_posix() != place:
            yield f"{path}:{line}: {'.'.join(use)} outside {place}: {why}"


def _store_breaches(path: Path, tree: ast.Module) -> Iterator[str]:
    if path.parts[:2] != ("hedgerow", "nn") or path.stem in BUILDERS:
        return
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and id(node) not in for_types:
            for alias in node.names:
                if alias.name in STORES:
                    at = f"{path}:{node.lineno}"
                    yield f"{at}: {alias.name} is a store; only builders in nn know which it is"


# Private names of objects of torch and TorchRec that classes of the package define, too.
_FOREIGN = {"_version", "_schema", "_lookups"}
_NO_BASE = {"Protocol", "Module", "Generic"}


def _base_names(node: ast.ClassDef) -> list[str]:
    return [ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases]


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _is_ours(node: ast.ImportFrom) -> bool:
    return bool(node.level) or (node.module or "").split(".")[0] == "hedgerow"


def _private_names(tree: ast.AST) -> set[str]:
    """Private names that a module or its classes define: fields, methods, functions, constants."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and ast.unparse(node.value) == "self"
        ):
            found.add(node.attr)
    return {name for name in found if _is_private(name)} - _FOREIGN


def _private_breaches(path: Path, tree: ast.Module, private: set[str]) -> Iterator[str]:
    """Private names of other objects and other modules. Of another object of the same class it may
    be: that is how two tables exchange their rows."""

    def visit(node: ast.AST, own: set[str]) -> Iterator[str]:
        if isinstance(node, ast.ClassDef):
            own = own | _private_names(node)
        if isinstance(node, ast.Attribute) and node.attr in private - own:
            whose = ast.unparse(node.value)
            if whose not in {"self", "cls", "super()"}:
                yield f"{path}:{node.lineno}: {whose}.{node.attr} is private to another object"
        elif isinstance(node, ast.ImportFrom) and _is_ours(node):
            for alias in node.names:
                if _is_private(alias.name) and alias.name != "_native":
                    yield f"{path}:{node.lineno}: {alias.name} is private to another module"
        for child in ast.iter_child_nodes(node):
            yield from visit(child, own)

    yield from visit(tree, set())


def _names_outside_bases(tree: ast.Module) -> Iterator[str]:
    """All names that a module uses, but for those of base classes."""
    bases = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for base in node.bases
        for inner in ast.walk(base)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and id(node) not in bases:
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _class_breaches(trees: dict[Path, ast.Module]) -> Iterator[str]:
    """Classes with several bases, and mixins: classes that do nothing but serve as the base of one
    other class, which makes the fields that they read."""
    classes = [
        (path, node)
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    ]
    protocols = {node.name for _, node in classes if "Protocol" in _base_names(node)}
    children: dict[str, list[str]] = {}
    for path, node in classes:
        bases = [b for b in _base_names(node) if b not in _NO_BASE | protocols]
        for base in bases:
            children.setdefault(base, []).append(node.name)
        is_error = any(base.endswith(("Error", "Warning")) for base in bases)
        is_enum = any(base.endswith("Enum") for base in bases)
        if len(bases) > 1 and not is_enum and not (is_error and len(bases) == 2):
            at = f"{path}:{node.lineno}"
            yield f"{at}: {node.name} has the bases {', '.join(bases)}; hold parts as fields"
    used = {name for tree in trees.values() for name in _names_outside_bases(tree)}
    for path, node in classes:
        decorators = {ast.unparse(one).split("(")[0] for one in node.decorator_list}
        makes_fields = any(
            (isinstance(item, ast.FunctionDef) and item.name == "__init__")
            or (isinstance(item, ast.AnnAssign) and "dataclass" in decorators)
            for item in node.body
        )
        if makes_fields or node.name in used | protocols:
            continue
        if len(children.get(node.name, [])) == 1:
            only = children[node.name][0]
            yield f"{path}:{node.lineno}: {node.name} is only the base of {only}; make it a part"


def _size_breaches(path: Path, text: str, tree: ast.Module) -> Iterator[str]:
    if text.count("\n") > MAX_FILE_LINES:
        yield f"{path}:1: {text.count(chr(10))} lines; at most {MAX_FILE_LINES}"
    if ast.get_docstring(tree) is None:
        yield f"{path}:1: no first line that states the purpose"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                at = f"{path}:{node.lineno}"
                yield f"{at}: {node.name} has {lines} lines; at most {MAX_FUNCTION_LINES}"
        elif isinstance(node, ast.ClassDef):
            is_data = any("dataclass" in ast.unparse(d) for d in node.decorator_list)
            annotated = [item for item in node.body if isinstance(item, ast.AnnAssign)]
            fields = sum(ast.unparse(item.annotation) != "KW_ONLY" for item in annotated)
            if is_data and fields > MAX_FIELDS:
                yield f"{path}:{node.lineno}: {node.name} has {fields} fields; at most {MAX_FIELDS}"
        elif isinstance(node, ast.ExceptHandler) and all(
            isinstance(item, ast.Pass) for item in node.body
        ):
            yield f"{path}:{node.lineno}: an exception is swallowed in silence"


def _cpp_breaches(path: Path, text: str) -> Iterator[str]:
    """Sizes of a clang-formatted file, whose functions begin and end in the first column."""
    lines = text.splitlines()
    if len(lines) > MAX_FILE_LINES:
        yield f"{path}:1: {len(lines)} lines; at most {MAX_FILE_LINES}"
    start = 0
    for number, line in enumerate(lines, start=1):
        if line and line[0] not in " }#/" and not line.startswith(("namespace", "struct", "class")):
            start = number
        elif line == "}" and number - start + 1 > MAX_FUNCTION_LINES:
            length = number - start + 1
            yield f"{path}:{start}: a function of {length} lines; at most {MAX_FUNCTION_LINES}"


def breaches(root: Path) -> Iterator[str]:
    """Every breach below `root`, as `file:line: what`."""
    texts = {
        full.relative_to(root): full.read_text()
        for full in sorted([*root.glob("hedgerow/**/*.py"), *root.glob("benchmarks/**/*.py")])
    }
    trees = {path: ast.parse(text) for path, text in texts.items()}
    private = set().union(*map(_private_names, trees.values()))
    yield from _class_breaches(trees)
    for path, tree in trees.items():
        text = texts[path]
        yield from _private_breaches(path, tree, private)
        yield from _import_breaches(path, tree)
        yield from _place_breaches(path, tree)
        yield from _store_breaches(path, tree)
        yield from _size_breaches(path, text, tree)
    for full in sorted([*root.glob("csrc/**/*.h"), *root.glob("csrc/**/*.cpp")]):
        yield from _cpp_breaches(full.relative_to(root), full.read_text())


def main() -> int:
    """Prints breaches; 1 if there are any."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent
    found = list(breaches(root))
    print("\n".join(found) if found else "contracts hold")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
