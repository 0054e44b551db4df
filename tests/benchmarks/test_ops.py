from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import ops, ops_duel
from benchmarks.ops_cases import CASES
from benchmarks.ops_duel import FULL, QUICK, Duel, Sizes
from benchmarks.rounds import Settings
from hedgerow import native
from hedgerow.core.errors import UnknownNameError


@pytest.mark.parametrize("name", list(CASES))
def test_both_sides_of_a_case_agree_and_give_fresh_outputs(name: str) -> None:
    duel = CASES[name](QUICK)
    ours, peer = duel.ours(True), duel.peer()
    assert ops_duel.agreed(duel, ours, peer)
    assert ops_duel.same(ours, duel.ours(False))
    first = {t.data_ptr() for t in _tensors(ours) if t.numel()}
    assert first.isdisjoint(t.data_ptr() for t in _tensors(duel.ours(True)) if t.numel())
    assert first.isdisjoint(t.data_ptr() for t in _tensors(duel.peer()) if t.numel())


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for inner in value for tensor in _tensors(inner)]


def test_the_full_sizes_are_those_of_the_specification() -> None:
    assert (FULL.ids, FULL.gather_ids) == (1_000_000, 100_000)
    assert FULL.windows == (74_070, 82_439)
    assert (FULL.tables, FULL.reduce_rows) == (102, 256)
    assert (FULL.batch, FULL.features, FULL.gradient_features) == (256, 199, 29)


def test_the_reduced_tables_are_those_of_the_specification() -> None:
    seen: list[Any] = []
    duel = CASES["reduce and split"](replace(FULL, tables=3))
    out = duel.ours(False)
    seen = [tuple(part.shape) for part in out]
    assert seen == [(256, 1)] + [(256, 1)] * 3 + [(256, 1)] * 3 + [(256, 2)]
    assert duel.work == {"tables": 3, "batch": 256}


def _scripted(
    monkeypatch: pytest.MonkeyPatch, ours: Callable[[bool], Any], peer: Callable[[], Any]
) -> None:
    def make(sizes: Sizes) -> Duel:
        return Duel(ours=ours, peer=peer, work={"ids": sizes.ids})

    monkeypatch.setattr(ops, "CASES", {"one": make, "two": make})


def _quiet(text: str, done: int, total: int) -> None:
    """Nobody looks."""


def test_sides_take_turns_in_alternating_order(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    one = torch.tensor([1])

    def ours(many: bool) -> torch.Tensor:
        calls.append(f"ours {native.threads()} {torch.get_num_threads()} {many}")
        return one

    def peer() -> torch.Tensor:
        calls.append("peer")
        return one

    _scripted(monkeypatch, ours, peer)
    before = native.threads(), torch.get_num_threads()
    report = ops.run(Settings(rounds=2, threads=2, quick=True, cases=("one",)), _quiet)
    assert (native.threads(), torch.get_num_threads()) == before
    runs = [name for name, _ in groupby(calls)]  # short calls are repeated
    mine, both = "ours 1 1 False", "ours 2 2 True"
    chain = [mine, "peer", mine, "peer", mine, "peer", mine]  # the first four warm up
    assert runs == [*chain, both, mine, both, mine, both]
    assert [(r["case"], r["peer"], r["threads"]) for r in report["results"]] == [
        ("one", "torch chain", 1),
        ("one", "one thread", 2),
    ]
    assert all(r["equal"] and r["ids"] == QUICK.ids for r in report["results"])


def test_one_thread_is_not_compared_with_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    _scripted(monkeypatch, lambda many: torch.ones(1), lambda: torch.ones(1))
    report = ops.run(Settings(rounds=1, threads=1, quick=True), _quiet)
    assert [r["case"] for r in report["results"]] == ["one", "two"]


def test_results_that_differ_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    _scripted(monkeypatch, lambda many: torch.ones(1), lambda: torch.zeros(1))
    (first, _, *_) = ops.run(Settings(rounds=1, quick=True), _quiet)["results"]
    assert first["equal"] is False


def test_sides_that_agree_on_something_wrong_are_told() -> None:
    duel = Duel(ours=lambda many: torch.ones(1), peer=lambda: torch.ones(1), wanted=torch.zeros(1))
    assert not ops_duel.agreed(duel, duel.ours(False), duel.peer())


def test_progress_ends_at_its_total(monkeypatch: pytest.MonkeyPatch) -> None:
    _scripted(monkeypatch, lambda many: torch.ones(1), lambda: torch.ones(1))
    seen: list[tuple[int, int]] = []
    ops.run(Settings(rounds=1, quick=True), lambda _, done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1] == (8, 8)


def test_only_one_call_after_the_rounds_is_profiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    profiled: list[bool] = []

    def ours(many: bool) -> torch.Tensor:
        profiled.append(torch.autograd.profiler._is_profiler_enabled)
        return torch.ones(3) + 1

    _scripted(monkeypatch, ours, lambda: torch.ones(3) + 1)
    report = ops.run(Settings(rounds=3, quick=True, cases=("one",)), _quiet, tmp_path)
    assert profiled == [False] * (len(profiled) - 1) + [True]
    (path,) = tmp_path.iterdir()
    assert report["results"][-1]["trace"] == str(path)
    assert '"one"' in path.read_text()


def test_an_older_trace_is_replaced_and_other_files_stay(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    ops.clear(folder)
    (folder / "gone.trace.json").write_text("old")
    (folder / "mine.json").write_text("kept")
    ops.clear(folder)
    assert [path.name for path in folder.iterdir()] == ["mine.json"]


def test_a_trace_into_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="no folder"):
        ops.clear(tmp_path / "file")


def test_an_unknown_case_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="unknown case 'fused_reduce_and_splid'"):
        ops.run(Settings(cases=("fused_reduce_and_splid",)), _quiet)


def test_structures_that_differ_are_not_the_same() -> None:
    one = torch.tensor([1.0, 2.0])
    assert ops_duel.same([one, (one,)], (one, [one]))
    assert ops_duel.same(one, one * (1 + 1e-6))
    for other in (one[:1], one.double(), one + 0.1, [one], "x"):
        assert not ops_duel.same(one, other)
    assert not ops_duel.same([one], [one, one])
