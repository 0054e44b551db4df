"""The table benchmark with peers that are right, wrong, missing, dying and silent."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import CHECKOUT, stages
from benchmarks.contestants import CONTESTANTS, Contestant, Patience
from benchmarks.rounds import Settings
from benchmarks.table import run
from hedgerow import native


def _bench(
    peer: str, fake: Contestant, cases: tuple[str, ...], **settings: Any
) -> list[dict[str, Any]]:
    contestants = {**CONTESTANTS, peer: fake}
    chosen = Settings(
        rounds=1, cases=cases, peers=(peer,), quick=True, contestants=contestants, **settings
    )
    return run(chosen, lambda *_: None)["results"]


def _fake(name: str, **fields: Any) -> Contestant:
    return Contestant(name=name, module=f"tests.benchmarks.fakes.{name}", path=CHECKOUT, **fields)


@pytest.mark.parametrize("name", ["honest", "noisy"])
def test_a_peer_with_the_same_rows_is_equal(name: str) -> None:
    (result,) = _bench("nn.Embedding", _fake(name), ("W1 lookup",))
    assert result["case"] == "W1 lookup"
    assert result["output"] == "fresh"
    assert result["peer"] == name
    assert result["equal"] is True
    assert result["ratio"] == pytest.approx(result["peer_ms"] / result["ours_ms"], rel=0.05)


def test_one_wrong_bit_in_a_lookup_is_seen() -> None:
    (result,) = _bench("nn.Embedding", _fake("wrong"), ("W1 lookup",))
    assert result["equal"] is False


@pytest.mark.parametrize(("name", "equal"), [("honest", True), ("wrong", False)])
def test_updates_are_compared_after_the_same_steps_within_a_tolerance(
    name: str, equal: bool
) -> None:
    (result,) = _bench("nn.Embedding(sparse)", _fake(name), ("W1 lookup+SGD",))
    assert result["equal"] is equal
    assert result["tolerance"]["relative"] <= 1e-3


def test_growth_gives_the_cost_of_an_id_at_each_size() -> None:
    growth = _bench("gather", _fake("honest"), ("growth",))
    assert [r["rows"] for r in growth] == [1_000, 5_000, 20_000, 50_000]
    assert growth[0]["ours_growth"] == growth[0]["peer_growth"] == 1
    assert all(r["ours_ns_per_id"] > 0 and r["peer_ns_per_id"] > 0 for r in growth)


def test_a_crash_is_an_error_with_the_last_words_and_costs_only_its_own_cases() -> None:
    results = _bench("nn.Embedding", _fake("crashing"), ("W2 lookup *", "memory"))
    *crashed, small, large = results
    assert [r["case"] for r in crashed] == ["W2 lookup zipf", "W2 lookup uniform"]
    for result in crashed:
        assert "status 1" in result["error"]
        assert "the roof fell in" in result["error"]
        assert "ours_ms" not in result
    assert small["case"] == large["case"] == "memory"


def test_a_peer_that_hangs_is_given_up() -> None:
    patience = Patience(prepare_s=0.5, answer_s=0.5)
    (result,) = _bench("nn.Embedding", _fake("hanging"), ("W1 lookup",), patience=patience)
    assert "no answer to 'prepare' within 0.5 s" in result["error"]


def test_an_answer_that_nobody_can_read_is_an_error() -> None:
    (result,) = _bench("nn.Embedding", _fake("babbling"), ("W1 lookup",))
    assert "answered 'hello\\n'" in result["error"]


def test_a_peer_without_its_environment_is_missing_and_the_fix_is_named() -> None:
    (result,) = _bench("TBE", _fake("honest", home="nowhere"), ("W1 lookup",))
    assert ".peers/nowhere" in result["missing"]
    assert "make bench-peers" in result["missing"]


def test_a_peer_without_its_library_is_missing_too() -> None:
    (result,) = _bench("TBE", _fake("incomplete"), ("W1 lookup",))
    assert "no_such_library" in result["missing"]
    assert "make bench-peers" in result["missing"]


def test_a_peer_that_does_not_fit_into_memory_is_not_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stages, "free_bytes", lambda: 600_000_000)
    (result,) = _bench("TBE", _fake("crashing"), ("W1 lookup",))
    assert result["missing"].startswith("needs about")
    assert "572 MiB are free" in result["missing"]


def test_the_thread_count_of_the_process_is_given_back() -> None:
    before = native.threads()
    _bench("nn.Embedding", _fake("honest"), ("W1 lookup",), threads=before + 1)
    assert native.threads() == before


def test_progress_ends_at_its_total() -> None:
    seen: list[tuple[int, int]] = []
    contestants = {**CONTESTANTS, "nn.Embedding": _fake("honest"), "EBC": _fake("crashing")}
    settings = Settings(
        rounds=2,
        cases=("W1 lookup", "insert calls"),
        peers=("EBC", "nn.Embedding"),
        quick=True,
        contestants=contestants,
    )
    run(settings, lambda text, done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1] == (6, 6)
