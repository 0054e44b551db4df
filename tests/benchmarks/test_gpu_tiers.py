"""Steps of tables in all modes are measured on the same work, with equal rows."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import gpu_tiers
from hedgerow.core.errors import ConfigError


def test_all_modes_take_the_same_steps(
    capsys: pytest.CaptureFixture[str], device: torch.device
) -> None:
    given = ["--json", "--quick", "--rounds", "1", "--device", str(device)]
    assert gpu_tiers.main(given) == 0
    told = capsys.readouterr()
    report = json.loads(told.out)
    assert told.err.split() == [line["case"] for line in report["results"]]
    assert [line["case"] for line in report["results"]] == [
        "HBM_ONLY",
        "CACHING@1.0",
        "CACHING@0.8",
        "HYBRID@0.1",
        "HOST_ONLY",
    ]
    for line in report["results"]:
        assert line["equal"] is True
        assert line["ms"] > 0 <= line["over_hbm_only"]
        # What users run comes first, what the store alone takes below it.
        assert list(line)[:2] == ["case", "path"]
        assert line["path"] == "module"
        assert list(line).index("ms") < list(line).index("store_ms")
        assert line["over_store"] == pytest.approx(line["ms"] / line["store_ms"], rel=1e-2)
    assert report["results"][3]["ms_200_steps_after_the_hot_set_moved"] > 0


def test_other_rows_are_told(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    taken: list[torch.Tensor] = []

    def measured(name: str, *_: object) -> tuple[dict[str, object], torch.Tensor]:
        taken.append(torch.full((3,), float(len(taken))))
        return {"case": name, "ms": 1.0}, taken[-1]

    monkeypatch.setattr(gpu_tiers, "_measured", measured)
    given = ["--quick", "--device", str(device), "--cases", "HBM_ONLY,HOST_ONLY"]
    assert gpu_tiers.main(given) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    with pytest.raises(ConfigError, match="needs a GPU"):
        gpu_tiers.run()
