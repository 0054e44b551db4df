"""The balance report: its figures, its advice, its forms."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from hedgerow.core.errors import InputError
from hedgerow.routing.balance import Spread, balance, draw_balance, gini


def test_counts_are_raw_and_of_equal_keys_once_a_step() -> None:
    keys = torch.tensor([0, 0, 0, 1, 0, 2, 2, 5])
    found = balance(keys, 2, step_keys=4)
    plain = found.rules[0]
    assert plain.dist_type == "roundrobin"
    assert plain.raw.counts == (6, 2)
    assert plain.deduplicated.counts == (3, 2)  # 0 | 1, then 0, 2 | 5
    assert plain.rows.counts == (2, 2)
    assert plain.raw.max_over_mean == 1.5
    assert (found.keys, found.distinct, found.ranks) == (8, 4, 2)
    assert found.top[0] == (0, 0.5)
    assert found.top[1] == (2, 0.25)


def test_continuous_is_measured_where_rows_are_known() -> None:
    keys = torch.arange(100)
    assert [rule.dist_type for rule in balance(keys, 4).rules] == ["roundrobin", "hash_roundrobin"]
    rule = balance(keys, 4, rows=200).rules[2]
    assert (rule.dist_type, rule.rows.counts) == ("continuous", (50, 50, 0, 0))


def test_gini_of_known_numbers() -> None:
    assert gini(torch.tensor([3, 3, 3])) == pytest.approx(0)
    assert gini(torch.tensor([0, 1])) == pytest.approx(0.5)
    assert gini(torch.tensor([1, 2, 3, 4])) == pytest.approx(0.25)
    assert gini(torch.tensor([0, 0])) == 0
    assert Spread((0, 1)).gini == pytest.approx(0.5)


def test_dense_keys_may_stay_with_the_remainder() -> None:
    found = balance(torch.arange(2_000), 16)
    assert found.recommended == "roundrobin"
    assert "dense" in found.reason


@pytest.mark.parametrize(
    ("keys", "word"),
    [
        (torch.arange(20_000) * 8, "pile up"),
        (torch.arange(2_000) * 17, "gaps"),
        (torch.arange(-1_000, 1_000), "gaps"),  # unsigned, they lie at both ends
        (torch.arange(1_000_000), "alike"),
    ],
)
def test_hashing_is_the_advice_otherwise(keys: torch.Tensor, word: str) -> None:
    found = balance(keys, 16 if len(keys) < 10_000 else 8)
    assert found.recommended == "hash_roundrobin"
    assert word in found.reason


def test_the_report_has_words_json_and_a_picture(tmp_path: Path) -> None:
    found = balance(torch.arange(1000).repeat(3) * 8, 8, rows=9_000)
    text = found.text()
    assert "3000 keys, 1000 distinct, over 8 ranks" in text
    assert "recommended: hash_roundrobin" in text
    again = json.loads(json.dumps(found.to_dict()))
    assert again["rules"][0]["raw"]["max_over_mean"] == 8.0
    assert sum(again["rules"][1]["deduplicated"]["counts"]) == 1000
    assert len(again["top"]) == 10
    draw_balance(found, tmp_path / "deep" / "a.png", title="$keys$")
    assert (tmp_path / "deep" / "a.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["a.png"]


def test_hot_keys_are_named_and_so_is_what_helps() -> None:
    """A third of all is one key: the same under both rules, cured by sending it once a step."""
    generator = torch.Generator().manual_seed(1)
    keys = torch.randint(0, 10**9, (90_000,), generator=generator)
    keys[::3] = 4242
    found = balance(keys, 8, step_keys=30_000)
    assert all(rule.raw.max_over_mean > 2.5 for rule in found.rules)
    assert all(rule.deduplicated.max_over_mean < 1.1 for rule in found.rules)
    assert "\n  4242  33.3 %\n" in found.text()
    assert found.text().endswith(found.hot_keys)
    assert "4242 (2.67 times the fair share of a rank)" in found.hot_keys
    for words in ("send equal keys of a step once", "dedup=True", "Copies of hot rows", "no help"):
        assert words in found.hot_keys
    assert found.to_dict()["hot_keys"] == found.hot_keys


def test_uneven_ranks_without_hot_keys_are_not_blamed_on_them() -> None:
    assert "occurrences spread evenly" in balance(torch.arange(10_000), 8).hot_keys
    few = balance(torch.arange(40) * 7919, 16)  # most ranks have two or three keys
    assert few.rules[1].raw.max_over_mean > 1.1
    assert "ranks differ in their distinct keys" in few.hot_keys


def test_bad_samples_are_refused() -> None:
    with pytest.raises(InputError, match="keys is empty"):
        balance(torch.tensor([], dtype=torch.int64), 2)
    with pytest.raises(InputError, match="step_keys is 0"):
        balance(torch.tensor([1]), 2, step_keys=0)
    with pytest.raises(ValueError, match="shards is 0"):
        balance(torch.tensor([1]), 0)
