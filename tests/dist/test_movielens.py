"""The example of a job on many processes: help, import, training under torchrun and alone."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from hedgerow.core.errors import FileMissingError
from hedgerow.data.movielens_100k import movielens_files

from .launched import ROOT, finish

EXAMPLE = ROOT / "examples" / "movielens.py"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
pytestmark = pytest.mark.xdist_group("launchers")


def _ended_well(*command: object) -> str:
    done: subprocess.CompletedProcess[str] = finish([str(part) for part in command])
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_help_and_import_do_nothing_else() -> None:
    shown = _ended_well(sys.executable, EXAMPLE, "--help")
    for word in ("--train", "--dist_type", "continuous", "roundrobin", "hash_roundrobin"):
        assert word in shown
    code = (
        "import builtins, sys, torch; said = builtins.print; "
        f"sys.path.insert(0, {str(EXAMPLE.parent)!r}); import movielens; "
        "assert print is said and not torch.distributed.is_initialized()"
    )
    assert _ended_well(sys.executable, "-c", code) == ""


def test_ids_are_hashed_over_ranks_if_no_rule_is_given() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(EXAMPLE.parent)!r}); import movielens; "
        "print(movielens.arguments([]).dist_type)"
    )
    assert _ended_well(sys.executable, "-c", code).strip() == "hash_roundrobin"


def test_a_mode_that_does_not_exist_is_refused() -> None:
    done = finish([sys.executable, EXAMPLE, "--dist_type", "modulo"])
    assert done.returncode == 2
    assert "hash_roundrobin" in done.stderr


@pytest.mark.parametrize(
    "given", [(), pytest.param(("--dist_type", "hash_roundrobin"), marks=pytest.mark.long)]
)
def test_two_processes_learn_what_one_learns(given: tuple[str, ...]) -> None:
    try:
        movielens_files(None)
    except FileMissingError as error:
        pytest.skip(f"NO PACKAGE INDEX: the example is not run on its data. {error}")
    short = ("--train", "--epochs", "1", "--batch_size", "2048")
    two = _ended_well(*TORCHRUN, EXAMPLE, *short, *given)
    assert "rows on rank 0 of 2" in two
    if given:
        return
    one = _ended_well(sys.executable, EXAMPLE, *short)
    assert _auc(two) == pytest.approx(_auc(one), abs=2e-3)
    assert _auc(one) > 0.6


def _auc(text: str) -> float:
    found = re.search(r"test auc (0\.\d+) of 19633 samples", text)
    assert found is not None, text
    return float(found[1])
