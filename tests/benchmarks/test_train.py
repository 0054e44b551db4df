"""The training benchmark: its work, both sides of it, and peers that are wrong or missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import CHECKOUT, train
from benchmarks.contestants import CONTESTANTS, Contestant
from benchmarks.peers.subject import measure, outcome, ready
from benchmarks.peers.training import (
    HIDDEN,
    PeerInteraction,
    SparseBags,
    Training,
    set_weights,
    weights_of,
)
from benchmarks.peers.workfile import Work
from benchmarks.rounds import Settings
from benchmarks.train import OurTraining, TrainSizes, make_train_work
from hedgerow import native
from hedgerow.core.errors import UnknownNameError
from hedgerow.data.synthetic_clicks import wide_clicks
from hedgerow.models.dlrm import Interaction
from tests.support import threads

SIZES = TrainSizes(features=3, rows=4_000, dim=8, samples=64, batches=3)


@pytest.fixture(autouse=True)
def _keep_threads() -> object:
    torch_threads = torch.get_num_threads()
    with threads(native.threads()):
        yield
    torch.set_num_threads(torch_threads)


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return make_train_work(SIZES, tmp_path / "w")


def _filled(kind: type[Training], work: Work) -> Training:
    subject = kind(work, 1, "adagrad")
    subject.fill()
    ready(subject, "train", "clicks")
    return subject


def test_the_dense_part_of_the_peers_is_ours() -> None:
    ours, peer = Interaction(5, 4, 8, (HIDDEN,), ()), PeerInteraction(5, 4, 8, HIDDEN)
    set_weights(peer, weights_of(ours))
    dense, vectors = torch.randn(16, 4), torch.randn(16, 5, 8, requires_grad=True)
    logits = ours(dense, list(vectors.unbind(1)))
    (gradient,) = torch.autograd.grad(logits.sum(), vectors)
    for given in (list(vectors.unbind(1)), vectors.flatten(1)):
        theirs = peer(dense, given)
        assert torch.equal(logits, theirs)
        assert torch.equal(gradient, torch.autograd.grad(theirs.sum(), vectors)[0])


def test_every_row_has_an_id_of_its_own_and_batches_ask_for_those_of_the_clicks(work: Work) -> None:
    ids = work.ids().reshape(SIZES.features, SIZES.rows)
    assert all(len(np.unique(of_table)) == SIZES.rows for of_table in ids)
    source = wide_clicks(SIZES.samples, SIZES.batches, features=3, rows=SIZES.rows)
    for step, numbers in enumerate(work.batches("clicks")):
        batch = source.batch(step)
        np.testing.assert_array_equal(work.ids()[numbers], batch.ids.values.numpy())
        np.testing.assert_array_equal(work.array("labels")[step], batch.labels.numpy())
        tables = numbers.reshape(SIZES.features, -1) // SIZES.rows
        assert (tables == np.arange(SIZES.features)[:, None]).all()


def test_both_sides_learn_the_same_from_the_same_start(work: Work) -> None:
    ours, peer = _filled(OurTraining, work), _filled(SparseBags, work)
    results = []
    for subject in (ours, peer):
        assert measure(subject, "train", "clicks", "fresh", calls=5) > 0
        results.append(outcome(subject, "train", "clicks", "fresh"))
    assert ours.steps == peer.steps == 6
    weights, sampled = len(work.array("weights")), len(work.sample("clicks"))
    assert len(results[0]) == 6 + weights + sampled * SIZES.dim
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5, atol=1e-6)
    before = work.first_rows_of(np.sort(work.sample("clicks"))).reshape(-1)
    assert (np.abs(results[0][6 + weights :] - before) > 1e-4).any()  # rows have learned


def test_after_a_reset_ours_trains_as_the_first_time(work: Work) -> None:
    ours = _filled(OurTraining, work)
    results = []
    for _ in range(2):
        ours.reset()
        ours.train(0, "fresh")
        ours.train(1, "fresh")
        results.append(outcome(ours, "train", "clicks", "fresh"))
    np.testing.assert_array_equal(results[0], results[1])


def _bench(
    monkeypatch: pytest.MonkeyPatch, peer: Contestant, name: str = train.PEERS[0]
) -> dict[str, Any]:
    monkeypatch.setattr(train, "QUICK", SIZES)
    settings = Settings(
        rounds=1, peers=(name,), quick=True, contestants={**CONTESTANTS, name: peer}
    )
    return train.run(settings, lambda *_: None)


def test_a_run_gives_samples_per_second_of_equal_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    before = native.threads(), torch.get_num_threads()
    report = _bench(monkeypatch, CONTESTANTS[train.PEERS[0]])
    assert (native.threads(), torch.get_num_threads()) == before
    assert list(report) == ["bench", "work", "versions", "results"]
    assert report["work"]["rows_a_table"] == SIZES.rows
    (result,) = report["results"]
    assert (result["case"], result["peer"]) == ("DLRM 3 features", train.PEERS[0])
    assert result["equal"] is True
    for who in ("ours", "peer"):
        speed = SIZES.samples * 1e3 / result[f"{who}_ms"]
        assert result[f"{who}_samples_per_s"] == pytest.approx(speed, rel=1e-2)


def test_a_peer_that_learns_a_little_faster_is_not_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Contestant(name="wrong", module="tests.benchmarks.fakes.wrong_training", path=CHECKOUT)
    assert _bench(monkeypatch, wrong)["results"][0]["equal"] is False


def test_a_peer_without_its_environment_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = Contestant(name="EBC fused", module="peers.torchrec_training", home="nowhere")
    (result,) = _bench(monkeypatch, nowhere, "EBC fused")["results"]
    assert "make bench-peers" in result["missing"]
    assert "ours_samples_per_s" not in result


def test_an_unknown_peer_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="EBC fusd"):
        train.run(Settings(peers=("EBC fusd",), quick=True), lambda *_: None)


@pytest.mark.long
@pytest.mark.parametrize("peer", ["EBC sparse", "EBC fused"])
def test_a_peer_of_its_own_environment_is_equal_or_says_how_to_get_it(peer: str) -> None:
    settings = Settings(rounds=1, peers=(peer,), quick=True)
    (result,) = train.run(settings, lambda *_: None)["results"]
    assert result.get("equal") is True or "make bench-peers" in result["missing"], result
