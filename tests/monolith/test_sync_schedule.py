"""When steps of parameter sync run, and that a failed one does not end them."""

from __future__ import annotations

import pytest
import torch

import hedgerow as hr
from hedgerow.core.errors import ConfigError, InputError, StateError
from hedgerow.monolith.sync.clients import EVERY_S, ParameterSyncHook, ParameterSyncLoop
from hedgerow.train.loop import Trainer


class Client:
    def __init__(self) -> None:
        self.configs: list[bytes] = []

    def create_sync_op(self, config_str: bytes) -> list[str]:
        self.configs.append(config_str)
        return [f"{len(self.configs)}"]


def test_a_loop_refreshes_before_every_step_and_survives_failures() -> None:
    client, numbers = Client(), iter(range(10**9))

    def refresh() -> bytes:
        number = next(numbers)
        if number == 1:
            raise InputError("no replicas are known")
        return bytes([number % 256])

    with ParameterSyncLoop(client, refresh, 0.001) as loop:
        loop.wait_for_step()
        loop.wait_for_step()
        with pytest.raises(StateError, match="started before"):
            loop.start()
    assert loop.failures == 1
    assert loop.steps == len(client.configs) + 1
    assert client.configs[:3] == [b"\x00", b"\x02", b"\x03"]
    done = loop.steps
    loop.stop()
    assert loop.steps == done


def test_a_loop_survives_errors_that_are_not_ours() -> None:
    """A backend of Monolith raises TypeError, ZooKeeper's client its own errors."""

    def refresh() -> bytes:
        raise TypeError("an info without grpc")

    with ParameterSyncLoop(Client(), refresh, 0.001) as loop:
        loop.wait_for_step()
    assert loop.failures >= 2


def test_a_loop_waits_between_steps_as_monolith_and_stops_at_once() -> None:
    loop = ParameterSyncLoop(Client(), lambda: b"")
    assert loop.every_s == EVERY_S == 10.0
    with loop:  # stops without waiting for the next step
        pass
    assert loop.steps <= 1
    with pytest.raises(ConfigError, match="every_s"):
        ParameterSyncLoop(Client(), lambda: b"", 0)


def test_a_hook_steps_every_time_and_refreshes_after_100_seconds() -> None:
    client, now, asked = Client(), [0.0], list[float]()

    def refresh() -> bytes:
        asked.append(now[0])
        return str(now[0]).encode()

    hook = ParameterSyncHook(client, refresh, now_s=lambda: now[0])
    for at in (0.0, 1.0, 99.9, 100.0, 150.0, 200.0):
        now[0] = at
        hook.after_step()
    assert asked == [0.0, 100.0, 200.0]
    assert client.configs == [b"0.0", b"0.0", b"0.0", b"100.0", b"100.0", b"200.0"]


def test_the_training_loop_takes_the_hook() -> None:
    client = Client()
    model = hr.models.DeepFM([hr.Table("user", 4)], dense=4)
    optimizer = torch.optim.SGD(model.parameters())
    hook = ParameterSyncHook(client, lambda: b"targets")
    Trainer(model, optimizer, hr.data.clicks(batch_size=8, steps=3), hooks=[hook]).run()
    assert client.configs == [b"targets"] * 3
