"""The peers that need environments of their own, where these are built."""

from __future__ import annotations

import pytest

from benchmarks.rounds import Settings
from benchmarks.table import run


@pytest.mark.long
@pytest.mark.parametrize("peer", ["TBE", "EBC", "managed collision", "TFRA"])
def test_a_peer_is_equal_in_every_case_or_says_how_to_get_it(peer: str) -> None:
    settings = Settings(rounds=1, peers=(peer,), quick=True)
    results = run(settings, lambda *_: None)["results"]
    assert len(results) >= 3
    for result in results:
        assert result.get("equal") is True or "make bench-peers" in result["missing"], result
