"""A replica of a bundle: rows and weights follow the trainer, and it tells how fresh it is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
import torch
from torch import Tensor, nn

import hedgerow as hr
from hedgerow.serving.client import PredictionClient
from hedgerow.serving.process import Replica
from hedgerow.sync.roster import Announcer, Roster

from .replicas import wait_for


class Small(nn.Module):
    """A logit of a user's row."""

    def __init__(self) -> None:
        super().__init__()
        tables = [hr.Table("user", 4)]
        self.rows = hr.EmbeddingBags(tables, init=hr.Uniform(0.5), optimizer=hr.Sgd(lr=0.5))
        self.top = nn.Linear(4, 1)

    def forward(self, ids: hr.IdBatch) -> Tensor:
        return self.top(self.rows(ids)["user"]).squeeze(1)


def batch(ids: list[int]) -> hr.IdBatch:
    return hr.IdBatch.from_lists({"user": [[i] for i in ids]})


def learn(model: nn.Module, ids: list[int]) -> None:
    """One step of rows and weights."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    optimizer.zero_grad()
    model(batch(ids)).sum().backward()
    optimizer.step()


def served(client: PredictionClient, ids: list[int]) -> Tensor:
    ones = torch.ones(len(ids), dtype=torch.int64)
    asked = {"user": torch.tensor(ids), "user_lengths": ones}
    return client.predict("entry", "serving_default", asked)["output"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path]:
    made, base = Small(), tmp_path_factory.mktemp("bundle")
    learn(made, [1, 2, 3])
    hr.serving.export(made, base, example=batch([1, 2]), version=1)
    return made, base


def test_predictions_follow_rows_and_weights(model: tuple[nn.Module, Path]) -> None:
    trainer, base = model
    ids = [1, 2, 3, 4, 5]
    with (
        Replica(base, http="127.0.0.1:0") as replica,
        hr.publish(trainer, replica.address, every="20ms", dense_every="20ms") as publisher,
        PredictionClient(replica.address) as client,
    ):
        for step in range(3):
            learn(trainer.train(), [3 + step, 4, 5])
            assert publisher.flush()
            expected = trainer.eval()(batch(ids)).detach()
            torch.testing.assert_close(served(client, ids), expected)
        (told,) = replica.status()["models"]
        assert told["dense"]["number"] >= 3
        (shard,) = told["shards"]
        assert shard["synced"]
        assert shard["seq"] >= 1
        assert shard["rows"] >= 5
        with urlopen(f"http://{replica.http_address}/syncz", timeout=30) as answer:
            (by_http,) = json.load(answer)["models"]
        assert by_http["shards"][0]["seq"] == shard["seq"]
        with urlopen(f"http://{replica.http_address}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        labels = f'model="{base.name}",shard="0",shards="1"'
        assert f"hedgerow_replica_age_seconds{{{labels}}}" in text
        told_by_publisher = publisher.metrics().decode()
        assert "parameter_sync_fid_count{" in told_by_publisher
        assert "hedgerow_sync_dropped_keys 0" in told_by_publisher


def test_without_dense_every_weights_stay_those_of_the_bundle(
    model: tuple[nn.Module, Path],
) -> None:
    trainer, base = model
    with Replica(base) as replica, hr.publish(trainer, replica.address) as publisher:
        assert publisher.flush()
        assert replica.status()["models"][0]["dense"]["number"] == 0


def test_a_replica_announces_itself_and_disappears_when_it_goes(
    model: tuple[nn.Module, Path],
) -> None:
    trainer, base = model
    with hr.publish(trainer, listen="127.0.0.1:0", every="20ms") as publisher:
        assert publisher.address is not None
        with Replica(base, follow=publisher.address) as replica:
            wait_for(lambda: any(target.live for target in publisher.status().targets))
            # The word that all is there comes with the pass after the last row.
            wait_for(lambda: replica.status()["models"][0]["shards"][0]["synced"])
        wait_for(lambda: not publisher.status().targets[0].listed)
        assert publisher.flush()  # those that left do not count


def test_a_replica_that_dies_loses_its_place_after_the_lease() -> None:
    roster = Roster("127.0.0.1:0", lease_s=0.2)
    announcer = Announcer([roster.address], "127.0.0.1:8500", beat_s=30.0).start()
    assert roster.wait_for(1, 30.0) == ["127.0.0.1:8500"]
    wait_for(lambda: roster.current() == [])
    announcer.stop()
    roster.close()


def test_serve_follow_as_a_user_runs_it(model: tuple[nn.Module, Path]) -> None:
    trainer, base = model
    with hr.publish(trainer, listen="127.0.0.1:0", every="20ms") as publisher:
        command = [sys.executable, "-m", "hedgerow", "serve", str(base), "--grpc", "127.0.0.1:0"]
        command += ["--http", "off", "--follow", str(publisher.address)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, env=environment, text=True
        ) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline().startswith("grpc 127.0.0.1:")
                wait_for(lambda: any(target.live for target in publisher.status().targets))
                process.send_signal(signal.SIGTERM)
                assert process.wait(60) == 0
            finally:
                process.kill()
        wait_for(lambda: not publisher.status().targets[0].listed)
