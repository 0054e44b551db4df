"""Reads sources as its arguments say and writes what came, or the errors, into a folder."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path

import torch

import hedgerow as hr
from hedgerow.launch.process_group import process_group
from hedgerow.launch.rank_info import rank_info
from hedgerow.train.evaluate import evaluate
from hedgerow.train.loop import Trainer


def _read(how: str) -> list[object]:
    source = hr.data.clicks(batch_size=9, steps=3)
    if how == "trainer":  # of a model that is not distributed: each rank would learn everything
        model = hr.models.DeepFM([hr.Table("user", 2), hr.Table("item", 2)], dense=4)
        Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), source).run()
    if how == "told-trainer":
        model = hr.distribute(hr.models.DeepFM([hr.Table("user", 2), hr.Table("item", 2)], dense=4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        outcome = Trainer(model, optimizer, source).run()
        samples = evaluate(model, hr.data.clicks(batch_size=9, steps=3))["samples"]
        return [outcome.samples, samples]
    if how == "twice":
        model = hr.distribute(hr.models.DeepFM([hr.Table("user", 2), hr.Table("item", 2)], dense=4))
        Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), source.share()).run()
    if how == "share":
        source.share()
    if how == "whole":
        source.share(0, 1)
    return [batch.dense[:, 0].tolist() for batch in source]


def _found(how: str) -> dict[str, object]:
    try:
        return {"read": _read(how)}
    except hr.HedgerowError as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    folder, names, joined = Path(sys.argv[1]), sys.argv[2].split(","), sys.argv[3] == "joined"
    with process_group() if joined else nullcontext():
        found = {how: _found(how) for how in names}
    (folder / f"{rank_info().rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
