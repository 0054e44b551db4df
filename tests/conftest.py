"""What holds for all tests: no deadlines, one torch thread, Triton's interpreter without a GPU."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch

from hedgerow.tables import slot_key

from . import interpreter
from .zookeeper import ZooKeeperProcess, skip_if_absent

if find_spec("hypothesis") is not None:  # a GPU machine may lack it; its tests do without
    from hypothesis import settings

    settings.register_profile("hedgerow", deadline=None)
    settings.load_profile("hedgerow")

# Two workers with as many threads as cores each wait for one another more than they work.
torch.set_num_threads(1)

# Said before Triton is imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_itemcollected(item: pytest.Item) -> None:
    """The Makefile looks for what runs alone in one folder: collecting all takes longer."""
    if item.get_closest_marker("alone") and not item.nodeid.startswith("tests/sync/"):
        raise pytest.UsageError(
            f"{item.nodeid} is marked alone, which `make test` runs in tests/sync"
        )


def pytest_collection_finish(session: pytest.Session) -> None:
    """Groups must hold: pytest-xdist marks them in names that some versions of pytest drop."""
    if getattr(session.config.option, "loadgroup", False):  # set in its workers
        for item in session.items:
            if item.get_closest_marker("xdist_group") and "@" not in item.nodeid:
                raise pytest.UsageError(f"xdist_group has no effect on {item.nodeid}")


def pytest_runtest_setup() -> None:
    """By now a test that launches kernels has imported them."""
    interpreter.prepare()


@pytest.fixture(autouse=True)
def _keys_of_a_test(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slot keys that look random and are the same in every run: a test fails always or never."""
    draw = random.Random(request.node.nodeid)
    monkeypatch.setattr(slot_key, "drawn_key", lambda: draw.randrange(1, 2**64))


@pytest.fixture
def device() -> torch.device:
    """Where kernels run here."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


@pytest.fixture(scope="session")
def zookeeper_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    """One real ZooKeeper for all tests of this process."""
    skip_if_absent()
    process = ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper"))
    try:
        yield process.start()
    finally:
        process.kill()


@pytest.fixture
def zookeeper(zookeeper_process: ZooKeeperProcess) -> ZooKeeperProcess:
    """A real ZooKeeper, empty."""
    zookeeper_process.clear()
    return zookeeper_process
