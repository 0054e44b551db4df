"""The contract checker finds what it is there to find."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAD = '"""Purpose."""\n\nfrom __future__ import annotations\n'


def _run(root: Path) -> subprocess.CompletedProcess[str]:
    script = ROOT / "tools" / "contracts.py"
    return subprocess.run([sys.executable, script, root], capture_output=True, text=True)


def test_this_repository_holds_its_contracts() -> None:
    run = _run(ROOT)
    assert run.returncode == 0, run.stdout


@pytest.mark.parametrize(
    ("path", "text", "breach"),
    [
        ("core/a.py", HEAD + "from ..tables import config\n", "core may not import tables.config"),
        ("ops/a.py", HEAD + "from ..tables.host import HostTable\n", "ops may not import"),
        ("planner/a.py", HEAD + "from ..tables.host import HostTable\n", "planner may not import"),
        ("core/a.py", HEAD + "import hedgerow.native\n", "relative import"),
        ("nn/a.py", HEAD + "from ..tables.host import HostTable\n", "HostTable is a store"),
        (
            "nn/collection.py",
            HEAD + "def f():\n    from ..ps.server_tables import ServerTables\n",
            "ServerTables is a store",
        ),
        ("attic/a.py", HEAD, "not in the import contract"),
        ("core/a.py", "x = 1\n", "states the purpose"),
        ("core/a.py", HEAD + "x = 1\n" * 800, "at most 800"),
        ("core/a.py", HEAD + "def f():\n" + "    x = 1\n" * 60, "at most 60"),
        ("core/a.py", HEAD + "import os\nx = os.environ\n", "the environment is read"),
        ("core/a.py", HEAD + "from os import getenv\n", "the environment is read"),
        ("core/a.py", HEAD + "import time\nx = time.time()\n", "through a Clock"),
        ("core/a.py", HEAD + "from time import time\n", "through a Clock"),
        ("core/a.py", HEAD + "import pyarrow\n", "pyarrow is optional"),
        ("tables/a.py", HEAD + "from triton import jit\n", "triton is optional"),
        ("kernels/a.py", HEAD + "import triton\n", "triton is optional"),
        ("kernels/toolchain.py", HEAD + "import pyarrow\n", "pyarrow is optional"),
        ("ops/a.py", HEAD + "from importlib import import_module\n", "visible to this script"),
        ("stray.py", HEAD, "beside the folders"),
        ("__main__.py", HEAD + "from .tables import host\n", "may not import tables.host"),
        ("core/a.py", HEAD + "import typer\n", "typer is optional"),
        ("calibration/a.py", HEAD + "from rich.table import Table\n", "rich.table is optional"),
        ("calibration/a.py", HEAD + "from ..serving import server\n", "may not import serving"),
        (
            "cli/a.py",
            HEAD + "from benchmarks.table import run\n",
            "may not import benchmarks.table",
        ),
        ("cli/bench.py", HEAD + "from benchmarks import table\n", "benchmarks is optional"),
        ("core/a.py", HEAD + "try:\n    x = 1\nexcept ValueError:\n    pass\n", "in silence"),
        (
            "core/a.py",
            HEAD + "@dataclass\nclass C:\n" + "".join(f"    f{i}: int\n" for i in range(13)),
            "13 fields",
        ),
    ],
)
def test_a_breach_is_named_with_its_place(
    tmp_path: Path, path: str, text: str, breach: str
) -> None:
    _is_named(tmp_path, f"hedgerow/{path}", text, breach)


@pytest.mark.parametrize(
    ("path", "text", "breach"),
    [
        ("a.py", HEAD + "from pandas import DataFrame\n", "pandas is optional"),
        ("a.py", HEAD + "from hedgerow.tables.host import _row\n", "private to another module"),
        ("a.py", HEAD + "from benchmarks.rounds import Settings\n", "relative import"),
        ("peers/a.py", HEAD + "from ..ours import Ours\n", "may not import ours.Ours"),
        ("peers/a.py", HEAD + "from hedgerow.core import checks\n", "may not import core"),
        ("peers/a.py", HEAD + "import hedgerow\n", "may not import hedgerow"),
        ("a.py", HEAD + "import os\nx = os.environ\n", "the environment is read"),
        ("a.py", HEAD + "def f():\n" + "    x = 1\n" * 60, "at most 60"),
    ],
)
def test_a_breach_of_a_benchmark_is_named(
    tmp_path: Path, path: str, text: str, breach: str
) -> None:
    _is_named(tmp_path, f"benchmarks/{path}", text, breach)


def _is_named(root: Path, path: str, text: str, breach: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True)
    file.write_text(text)
    run = _run(root)
    assert run.returncode == 1
    assert f"{path}:" in run.stdout
    assert breach in run.stdout


def test_long_functions_of_the_core_are_found(tmp_path: Path) -> None:
    (tmp_path / "csrc").mkdir()
    body = "  x();\n"
    (tmp_path / "csrc" / "a.cpp").write_text("void f() {\n" + body * 59 + "}\n")
    run = _run(tmp_path)
    assert run.returncode == 1
    assert "csrc/a.cpp:1: a function of 61 lines" in run.stdout
    (tmp_path / "csrc" / "a.cpp").write_text("void f() {\n" + body * 58 + "}\n")
    assert _run(tmp_path).returncode == 0


def test_what_the_contract_allows_passes(tmp_path: Path) -> None:
    for path, text in {
        "hedgerow/data/a.py": HEAD + "def read() -> None:\n    import pyarrow\n",
        "hedgerow/kernels/toolchain.py": HEAD + "import triton\n",
        "hedgerow/planner/a.py": HEAD + "from ..tables.config import TableConfig\n",
        "hedgerow/tables/a.py": HEAD + "from .. import native\nfrom ..core import checks\n",
        "hedgerow/__init__.py": HEAD + "from .tables.config import TableConfig\n",
        "hedgerow/__main__.py": HEAD + "from .cli.app import main\n",
        "hedgerow/cli/app.py": HEAD + "import typer\nfrom rich.table import Table\n",
        "hedgerow/cli/bench.py": HEAD + "def f() -> None:\n    from benchmarks import a\n",
        "hedgerow/calibration/a.py": HEAD + "from ..nn.bags import EmbeddingBags\n",
        "benchmarks/ours.py": HEAD + "from .peers.subject import Subject\n",
        "benchmarks/a.py": HEAD + "from hedgerow.cli.app import app\nimport typer\n",
        "benchmarks/peers/a.py": HEAD + "from .subject import Subject\n",
    }.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    run = _run(tmp_path)
    assert run.returncode == 0, run.stdout
