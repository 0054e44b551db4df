"""The vectors of refresh_sync_config once more, on a real ZooKeeper."""

from __future__ import annotations

import pytest

from tests.zookeeper import ZooKeeperProcess

from . import serving_discovery
from .runner import Case
from .serving_area import AREA

CASES = [case for case in AREA.cases() if case.file == "refresh_sync_config"]


@pytest.mark.xdist_group("zookeeper")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case: Case, zookeeper: ZooKeeperProcess) -> None:
    serving_discovery.play(case.value, zookeeper.client, ordered=False)
