"""The commands of docs/guides/serving.md, as they stand there, on the page's own export."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "serving.md"


WITH_SERVER = 'python title="with a running server"'


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The page's model, exported by the page's code, behind `hedgerow serve`."""
    folder = tmp_path_factory.mktemp("models") / "ctr"
    (code,) = [block for block in _blocks("python") if "hr.serving.export(" in block]
    page = code.replace('tempfile.mkdtemp() + "/ctr"', repr(str(folder)))
    exec(compile(page, str(PAGE), "exec"), {})
    command = [sys.executable, "-m", "hedgerow", "serve", str(folder)]
    command += ["--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield dict(process.stdout.readline().split() for _ in range(2))
        finally:
            process.kill()


def _commands() -> list[str]:
    """Each curl command, with the lines that belong to it."""
    (block,) = [block for block in _blocks("console") if "curl -H" in block]
    return [f"curl {rest}" for rest in re.split(r"^curl ", block, flags=re.MULTILINE)[1:]]


def test_every_curl_command_answers(addresses: dict[str, str]) -> None:
    commands, found = _commands(), []
    assert len(commands) == 4
    for command in commands:
        line = command.replace("127.0.0.1:8501", addresses["http"])
        done = subprocess.run(
            ["bash", "-c", line], capture_output=True, text=True, timeout=120, check=True
        )
        found.append(json.loads(done.stdout))
    assert not any("error" in one for one in found), found
    assert len(found[0]["predictions"]) == 2
    assert found[1]["outputs"] == pytest.approx(found[0]["predictions"][:1], abs=1e-5)
    assert found[2]["model_version_status"][0]["state"] == "AVAILABLE"
    assert found[3]["model_spec"]["name"] == "ctr"


def test_every_python_block_that_needs_a_server_runs(addresses: dict[str, str]) -> None:
    scope: dict[str, object] = {}
    for code in _blocks(WITH_SERVER):
        exec(compile(code.replace("127.0.0.1:8500", addresses["grpc"]), str(PAGE), "exec"), scope)
    assert len(scope["outputs"]) == 2  # type: ignore[arg-type]


def test_predict_takes_the_page_s_values(addresses: dict[str, str], tmp_path: Path) -> None:
    body = re.search(r"-d '(.*?)'", _commands()[0], re.DOTALL)
    assert body is not None
    (tmp_path / "ask.json").write_text(body[1])
    (line,) = [one for one in _blocks("console") if "--inputs ask.json" in one]
    words = line.replace("127.0.0.1:8500", addresses["grpc"]).split()[1:]
    command = [sys.executable, "-m", "hedgerow", *words]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=True, cwd=tmp_path
    )
    assert len(json.loads(done.stdout)["predictions"]) == 2
