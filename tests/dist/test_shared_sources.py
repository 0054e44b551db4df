"""Sources on the ranks of a real job: they refuse what they were not told, and share what they are.

The README's quick start under torchrun learns what one process learns.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import hedgerow as hr

from .launched import ROOT, finish

SCRIPT = Path(__file__).parent / "source_script.py"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
pytestmark = pytest.mark.xdist_group("launchers")


ALONE, JOINED = ("plain", "share"), ("trainer", "whole", "told-trainer", "twice")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What two ranks found, by what they did: without torch's process group, and with it."""
    found: dict[str, list[dict[str, Any]]] = {}
    for names, joined in ((ALONE, "alone"), (JOINED, "joined")):
        folder = tmp_path_factory.mktemp(joined)
        done = finish([*TORCHRUN, SCRIPT, folder, ",".join(names), joined])
        assert done.returncode == 0, done.stderr
        ranks = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
        found |= {name: [rank[name] for rank in ranks] for name in names}
    return found


@pytest.mark.parametrize("how", ["plain", "trainer"])
def test_a_source_that_was_not_told_of_ranks_refuses(
    how: str, told: dict[str, list[dict[str, Any]]]
) -> None:
    """Before torch's process group is there, and after."""
    for rank, one in enumerate(told[how]):
        error = one["error"]
        assert error.startswith(f"StateError: this source is read on rank {rank} of 2"), error
        assert "without source.share()" in error
        assert "source.share()" in error
        assert "source.share(0, 1)" in error


def test_a_source_that_was_told_gives_each_rank_its_part(
    told: dict[str, list[dict[str, Any]]],
) -> None:
    parts = [one["read"] for one in told["share"]]
    whole = [b.dense[:, 0].tolist() for b in hr.data.clicks(batch_size=9, steps=3)]
    assert [[*first, *second] for first, second in zip(*parts, strict=True)] == whole
    assert [[len(batch) for batch in part] for part in parts] == [[4, 4, 4], [5, 5, 5]]


def test_whole_batches_on_every_rank_are_given_when_asked_for(
    told: dict[str, list[dict[str, Any]]],
) -> None:
    whole = [b.dense[:, 0].tolist() for b in hr.data.clicks(batch_size=9, steps=3)]
    assert [one["read"] for one in told["whole"]] == [whole, whole]


def test_a_trainer_and_an_evaluation_divide_whole_batches_themselves(
    told: dict[str, list[dict[str, Any]]],
) -> None:
    assert [one["read"] for one in told["told-trainer"]] == [[27, 27.0]] * 2


def test_a_trainer_refuses_a_source_that_is_divided_already(
    told: dict[str, list[dict[str, Any]]],
) -> None:
    for one in told["twice"]:
        assert "divides whole batches itself; call share(0, 1)" in one["error"]


def test_the_quick_start_of_the_readme_learns_on_two_ranks_what_it_learns_on_one(
    tmp_path: Path,
) -> None:
    """With the two lines that the README changes for many processes."""
    readme = (ROOT / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    quick = next(block for block in blocks if "class DLRM" in block)
    many = next(block for block in blocks if "hr.distribute(" in block)
    (source,) = re.findall(r"^source = (.*?)  #", many, re.MULTILINE)
    unshared = source.removesuffix(".share()")
    assert unshared != source
    assert unshared in quick
    script = quick.replace("model = DLRM()", "torch.manual_seed(0)\nmodel = hr.distribute(DLRM())")
    script = script.replace(unshared, source).replace(
        "    opt.step()\n", "    opt.step()\n    losses.append(loss.item())\n"
    )
    script = script.replace("opt = torch", "losses = []\nopt = torch") + (
        "import json, pathlib, sys, torch.distributed as dist\n"
        "rank = dist.get_rank() if dist.is_initialized() else 0\n"
        "rows = {name: table['rows'] for name, table in hr.stats(model).items()}\n"
        "told = {'losses': losses, 'rows': rows}\n"
        "pathlib.Path(sys.argv[1], f'{rank}.json').write_text(json.dumps(told))\n"
    )
    (tmp_path / "quick.py").write_text(script)
    found = []
    for name, start in (("one", (sys.executable,)), ("two", TORCHRUN)):
        (tmp_path / name).mkdir()
        done = finish([*start, tmp_path / "quick.py", tmp_path / name])
        assert done.returncode == 0, done.stderr
        found.append([json.loads(p.read_text()) for p in sorted((tmp_path / name).iterdir())])
    (one,), two = found
    assert len(two) == 2
    means = [sum(pair) / 2 for pair in zip(*(rank["losses"] for rank in two), strict=True)]
    assert means == pytest.approx(one["losses"], rel=1e-3)
    for name, rows in one["rows"].items():
        assert sum(rank["rows"][name] for rank in two) == rows
