"""What collisions cost is measured on equal terms: same first values, same batches, same rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import hedgerow as hr
from benchmarks.quality import VocabularyBags, clicks_work, hashed, known_ids, run, vocabulary
from hedgerow.cli.app import app

TABLES = {"user": "user", "item": "item", "history": "item"}


def test_a_vocabulary_starts_from_our_first_values_and_does_not_know_new_ids() -> None:
    work = clicks_work(quick=True)
    model = work.model(seed=3)
    dense, ids, _ = hr.data.clicks(batch_size=32, steps=1).batch(0)
    ours = model(dense, ids).detach()
    known = known_ids([ids], TABLES)
    bags = vocabulary().bags(model.bags, known)
    assert isinstance(bags, VocabularyBags)
    model.bags = bags  # pyright: ignore[reportAttributeAccessIssue]
    torch.testing.assert_close(model(dense, ids), ours)
    unknown = hr.IdBatch.from_lists({"user": [[1], []], "item": [[2], []], "history": [[3], []]})
    for vectors in bags(unknown).values():
        assert torch.equal(vectors, torch.zeros(2, 9))


@pytest.mark.parametrize("divisor", [2, 4, 10])
def test_hashed_ids_fill_that_share_of_the_rows(divisor: int) -> None:
    ids = hr.data.clicks(batch_size=4096, steps=1).batch(0).ids
    known = known_ids([ids], TABLES)
    variant = hashed(divisor, TABLES, seed=1)
    changed = variant.ids(ids, known)
    assert torch.equal(changed.offsets, ids.offsets)
    rows = known_ids([changed], TABLES)
    for table, every in known.items():
        assert int(rows[table].min()) >= 0
        assert int(rows[table].max()) < len(every) // divisor
    assert variant.rows(known) == sum(len(every) // divisor for every in known.values())
    one = known["user"][:1].expand(5).contiguous()
    same = variant.ids(hr.IdBatch.from_dict({"user": one}), known)
    assert len(same.values.unique()) == 1


def test_the_report_has_every_variant(tmp_path: Path) -> None:
    report = run(lambda *_: None, seeds=1, cases=["synth*"], quick=True, png=tmp_path / "q.png")
    names = [r["variant"] for r in report["results"]]
    assert names == [
        "collisionless",
        "hashed to 1/2",
        "hashed to 1/4",
        "hashed to 1/10",
        "nn.EmbeddingBag",
    ]
    ours, *_, torchs = report["results"]
    assert ours["auc"] == pytest.approx(torchs["auc"], abs=1e-3)
    assert 0.5 < ours["auc"] < ours["best_auc"]
    assert (tmp_path / "q.png").read_bytes()[1:4] == b"PNG"
    json.dumps(report)


def test_the_command_shows_the_table_and_refuses_unknown_cases() -> None:
    done = CliRunner().invoke(
        app, ["bench", "quality", "--quick", "--seeds", "1", "--cases", "synthetic*"]
    )
    assert done.exit_code == 0, done.output
    assert "hashed to 1/10" in done.output
    assert "best reachable" in done.output
    bad = CliRunner().invoke(app, ["bench", "quality", "--cases", "nothing"])
    assert bad.exit_code != 0
    assert "known: movielens-100k" in str(bad.exception)
