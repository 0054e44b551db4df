"""The list of cases, and what a choice leaves of it."""

from __future__ import annotations

import pytest

from benchmarks.a2a import PEERS as RANK_PEERS
from benchmarks.cases import FULL, QUICK, all_stages, choose
from benchmarks.contestants import CONTESTANTS, our_bytes
from benchmarks.ps import transport_stages
from benchmarks.train import PEERS as TRAINING_PEERS
from hedgerow.core.errors import UnknownNameError

STAGES = all_stages(FULL)


def _pairs(cases: tuple[str, ...], peers: tuple[str, ...]) -> set[tuple[str, str, str]]:
    left, _ = choose(STAGES, cases, peers)
    return {(c.name, c.output, peer) for s in left for c in s.cases for peer in c.peers}


def test_every_peer_of_every_case_can_be_started() -> None:
    of_tables = {peer for stage in STAGES for peer in stage.peers()}
    of_servers = {peer for stage in transport_stages(quick=True) for peer in stage.peers()}
    every = of_tables | of_servers | set(TRAINING_PEERS) | set(RANK_PEERS)
    assert every == set(CONTESTANTS)


def test_quick_differs_in_size_only() -> None:
    assert [s.cases for s in all_stages(QUICK)] == [s.cases for s in STAGES]


def test_like_is_compared_with_like() -> None:
    for name in ("W1 lookup", "W2 lookup zipf", "W2 lookup uniform"):
        pairs = _pairs((name,), ())
        assert (name, "fresh", "nn.Embedding") in pairs
        assert (name, "reused", "torch.index_select") in pairs
        assert {o for _, o, peer in pairs if peer in ("TBE", "EBC", "TFRA")} == {"fresh"}


def test_names_and_patterns_choose_cases_and_peers() -> None:
    assert _pairs(("w1 lookup+sgd",), ("tbe",)) == {("W1 lookup+SGD", "fresh", "TBE")}
    assert {name for name, _, _ in _pairs(("W2 lookup *",), ())} == {
        "W2 lookup zipf",
        "W2 lookup uniform",
    }
    assert {peer for _, _, peer in _pairs((), ("nn.*",))} == {
        "nn.Embedding",
        "nn.Embedding(sparse)",
    }


def test_cases_without_a_peer_run_unless_only_peers_were_chosen() -> None:
    assert choose(STAGES, (), ())[1] == {"memory", "insert calls"}
    assert choose(STAGES, (), ("TBE",))[1] == set()
    assert choose(STAGES, ("memory",), ("TBE",)) == ([], {"memory"})


@pytest.mark.parametrize(
    ("cases", "peers", "said"),
    [(("W3",), (), "unknown case 'W3'"), ((), ("TBF",), "Did you mean 'TBE'")],
)
def test_a_name_that_fits_nothing_is_an_error(
    cases: tuple[str, ...], peers: tuple[str, ...], said: str
) -> None:
    with pytest.raises(UnknownNameError, match=said):
        choose(STAGES, cases, peers)


def test_memory_needs_follow_from_rows_and_states() -> None:
    lookup, adagrad = (
        next(s for s in STAGES if s.plan.name == "W2" and s.optimizer == optimizer)
        for optimizer in (None, "adagrad")
    )
    bare = 10_000_000 * 64 * 4
    assert bare < our_bytes(lookup) < 1.4 * bare
    assert 2 * bare < our_bytes(adagrad) < 2.5 * bare
    assert CONTESTANTS["TFRA"].needed_bytes(lookup) > 2 * bare
