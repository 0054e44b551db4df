"""The public surface: recorded, complete, documented."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from pathlib import Path

import pytest

import hedgerow as hr
from tools.api import surface

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "tests" / "golden" / "api.json"


def test_public_signatures_are_those_on_record() -> None:
    """Meant to change? `make api` records it, in the same commit."""
    assert surface() == json.loads(RECORD.read_text())


def test_the_door_says_the_same_to_type_checkers_and_at_run_time() -> None:
    tree = ast.parse((ROOT / "hedgerow" / "__init__.py").read_text())
    (block,) = [n for n in tree.body if isinstance(n, ast.If)]
    seen = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == hr._PLACES | dict.fromkeys(hr._DOORS)
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        hr.Nonsense  # noqa: B018


def test_the_version_is_that_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert hr.__version__ == project["version"]
    assert f"## {hr.__version__}" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("name", [n for n in dir(hr) if not n.startswith("__")])
def test_every_public_name_is_documented(name: str) -> None:
    value = getattr(hr, name)
    assert value.__doc__
    assert not value.__doc__.startswith(f"{name}(")  # what dataclass writes when nobody did


def _code_blocks(path: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)


@pytest.mark.parametrize("name", hr.data.__all__)
def test_every_name_of_the_doors_inside_is_documented_with_an_example(name: str) -> None:
    assert ">>> " in (getattr(hr.data, name).__doc__ or "")


# Blocks with this fence run in tests/serving/test_serving_page.py, which starts a server.
WITH_SERVER = '```python title="with a running server"'
SERVING = ROOT / "docs" / "guides" / "serving.md"


def test_every_python_block_runs_in_a_test() -> None:
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        fences = set(re.findall(r"^```python.*$", path.read_text(encoding="utf-8"), re.MULTILINE))
        assert fences <= {"```python"} | ({WITH_SERVER} if path == SERVING else set()), path


PAGES = [
    path.relative_to(ROOT).as_posix()
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if "```python" in path.read_text(encoding="utf-8") and "notes" not in path.parts
]


@pytest.mark.parametrize("path", PAGES)
# torch hides this word of its own compiler from users, though not from a filter that makes errors.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_code_in_the_documents_runs(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {"__name__": "document"}  # a page's blocks follow each other
    for block in _code_blocks(ROOT / path):
        exec(compile(block, path, "exec"), names)
