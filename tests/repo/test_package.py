"""What users install: the wheel, what it links, what importing it loads, and the example."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ONE_BUILD = pytest.mark.xdist_group("wheel")  # one process builds the wheel for both tests


def _run(*command: str | Path, cwd: Path = ROOT) -> str:
    run = subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=600)
    assert run.returncode == 0, f"{command}:\n{run.stdout}\n{run.stderr}"
    return run.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    _run(
        sys.executable,
        *("-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps"),
        *("--disable-pip-version-check", "-w", folder, ROOT),
    )  # with what `make env` has compiled
    (found,) = folder.glob("*.whl")
    return found


@ONE_BUILD
def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.startswith("hedgerow/native/_native.") for name in names)
    assert {"hedgerow/py.typed", "hedgerow/native/_native.pyi"} <= set(names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"hedgerow"}
    assert wheel.stat().st_size < 5_000_000


@ONE_BUILD
def test_the_native_module_links_no_torch_and_imports_without_it(
    wheel: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    (module,) = (tmp_path / "site").glob("hedgerow/native/_native.*.so")
    needed = _run("readelf", "-d", module)
    assert "NEEDED" in needed
    assert "torch" not in needed
    assert "c10" not in needed
    venv.create(tmp_path / "bare", with_pip=False)
    script = (
        "import sys; sys.path.insert(0, 'site'); from hedgerow.native import _native; "
        "print(_native.isas()[0], 'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    assert _run(tmp_path / "bare" / "bin" / "python", "-c", script, cwd=tmp_path) == (
        "baseline False False\n"
    )


@ONE_BUILD
def test_the_wheel_calibrates_and_says_where_benchmarks_run(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    script = (  # without the finder of an editable install, which comes before sys.path
        "import sys; sys.meta_path[:] = [f for f in sys.meta_path if not "
        "type(f).__module__.startswith('_editable')]; "
        "sys.path.insert(0, 'site'); import hedgerow; from hedgerow.cli.app import "
        "main; print(hedgerow.__file__); sys.argv[0] = 'hedgerow'; main()"
    )

    def program(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-c", script, *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=600)

    run = program("calibrate", "--seconds", "0.5")
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith(str(tmp_path / "site"))
    assert (tmp_path / "calibration.json").exists()
    run = program("bench", "table")
    assert run.returncode == 2
    assert "run `hedgerow bench` from a checkout of the repository" in run.stderr


def test_importing_the_package_loads_no_optional_library() -> None:
    script = """
        import sys
        import hedgerow as hr
        assert "torch" not in sys.modules  # the door is lazy
        import torch
        before = set(sys.modules)
        hr.HostTable, hr.IdBatch, hr.Adam, hr.stats
        loaded = {name.split(".")[0] for name in set(sys.modules) - before}
        print(sorted(loaded - set(sys.stdlib_module_names)))
        rare = {"typer", "rich", "pyarrow", "triton", "zmq", "grpc"}
        print(sorted(rare & set(sys.modules)))
    """
    assert _run(sys.executable, "-c", textwrap.dedent(script)) == "['hedgerow']\n[]\n"


def test_device_tables_import_without_the_core_and_kernels_without_triton() -> None:
    script = """
        import sys
        sys.modules["hedgerow.native._native"] = None  # as if it had not been built
        import hedgerow.tables.device, hedgerow.tables.host
        import hedgerow.native
        try:
            hedgerow.native.Table
        except ImportError as error:
            print("make env" in str(error))
        for name in [n for n in sys.modules if n.split(".")[0] in ("hedgerow", "triton")]:
            del sys.modules[name]
        sys.modules["triton"] = None
        import tests.twins.kernels_table, hedgerow.tables.host
        from hedgerow.core.errors import HedgerowError
        try:
            import hedgerow.tables.device
        except HedgerowError as error:
            print(type(error).__name__, "hedgerow[gpu]" in str(error))
    """
    wanted = "True\nMissingExtraError True\n"
    assert _run(sys.executable, "-c", textwrap.dedent(script)) == wanted


def test_no_link_is_tracked() -> None:
    """A link to somewhere on one machine dangles on every other."""
    if not (ROOT / ".git").exists():
        pytest.skip("NOT A CHECKOUT: links are not looked for")
    listed = subprocess.run(
        ["git", "ls-files", "-s"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert len(listed) > 50
    assert [line for line in listed if line.startswith("120000")] == []


def test_the_example_learns() -> None:
    lines = _run(sys.executable, "examples/local_table.py", "--steps", "150").splitlines()
    losses = [float(line.split("loss")[1].split()[0]) for line in lines if line.startswith("step")]
    assert len(losses) >= 3
    assert losses[-1] < 0.85 * losses[0]
