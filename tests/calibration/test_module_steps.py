"""Steps of a module over a filled store: what calibration and `gpu_tiers` measure."""

from __future__ import annotations

import pytest
import torch

import hedgerow as hr
from hedgerow.calibration import calibrate, sweeps
from hedgerow.calibration.module_steps import ModuleSteps
from hedgerow.calibration.sweeps import Filled, Sweep
from hedgerow.core.id_batch import IdBatch
from hedgerow.tables.multi.host_tables import HostTables
from hedgerow.tables.store import TableKeys


def _store(rule: hr.Sgd) -> HostTables:
    segments = (hr.Segment(2, hr.Zeros(), rule),)
    return HostTables({name: hr.TableConfig(name, segments) for name in ("a", "b")})


def _keys(*ids: int) -> TableKeys:
    half = len(ids) // 2
    return TableKeys(torch.tensor(ids), (0, half, len(ids)))


@pytest.mark.parametrize("ahead", [False, True])
def test_the_module_learns_what_the_store_alone_does(ahead: bool) -> None:
    rule = hr.Sgd(lr=0.5)
    steps, alone = ModuleSteps(_store(rule), rule), _store(rule)
    ready, grads = [_keys(1, 1, 2, 3), _keys(4, 5, 6, 6), _keys(7, 8, 8, 9)], torch.randn(8)
    steps.run(ready, grads, ahead=ahead, square=torch.ones(2, 2))
    for keys in ready:
        alone.apply_gradients(alone.lookup(keys, missing="training"), grads)
        assert torch.equal(steps.store.lookup(keys).rows, alone.lookup(keys).rows)


def _batches_of(monkeypatch: pytest.MonkeyPatch) -> list[IdBatch]:
    """The batches that modules are called with from now on."""
    seen: list[IdBatch] = []
    plain = hr.EmbeddingBags.forward

    def forward(self: hr.EmbeddingBags, batch: IdBatch, *more: object) -> object:
        seen.append(batch)
        return plain(self, batch, *more)  # pyright: ignore

    monkeypatch.setattr(hr.EmbeddingBags, "forward", forward)
    return seen


@pytest.mark.parametrize("mode", ["HBM_ONLY", "HOST_ONLY", "HYBRID", "CACHING"])
def test_a_calibrated_step_is_one_of_a_module(
    mode: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    factor = 0.5 if mode in ("HYBRID", "CACHING") else 1.0
    sweep = Sweep(mode=mode, dim=4, keys=(8,), tables=2, factor=factor)
    filled = Filled(sweep, 64, device, tries=0)
    seen = _batches_of(monkeypatch)
    for _ in range(2):
        keys = filled.batch(8, 0.0, 1)
        before = filled.store.lookup(keys).rows.clone()
        filled.step(keys, filled.grads(keys))
        assert not torch.equal(filled.store.lookup(keys).rows, before)
    assert len({id(batch) for batch in seen}) == 2  # a new one each time
    assert sweeps.ModuleSteps is ModuleSteps


def test_so_is_one_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = _batches_of(monkeypatch)
    steps = calibrate._Steps(4, 1 << 16)
    points = {point.kind: point for point in steps.points(256, 0.01)}
    assert len({id(batch) for batch in seen}) == len(seen) > 3
    assert list(points) == ["lookup", "update", "step"]
    assert points["step"].ms > max(points["lookup"].ms, points["update"].ms)
    steps.close()
