"""The registry: versions come and go, each is closed after its last request, none is lost."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from hedgerow.core.errors import ConfigError, InputError, NameTakenError
from hedgerow.serving.folders import All, Latest, LatestOnce, Specific, policy_of
from hedgerow.serving.model import Model, ServingError
from hedgerow.serving.registry import Registry, VersionState

from .serving import adding

DEADLINE_S = 60


def _load(folder: Path, name: str) -> Model:
    if (folder / "broken").exists():
        raise InputError("this bundle is broken")
    return Model(name, int((folder / "version").read_text()), {})


def _put(base: Path, version: int, *, broken: bool = False) -> None:
    """A version that appears whole, as an export's rename makes it."""
    half = base / f"half-{version}"
    half.mkdir(parents=True)
    (half / "version").write_text(str(version))
    if broken:
        (half / "broken").touch()
    half.rename(base / str(version))


def _states(registry: Registry, name: str = "m") -> dict[int, str]:
    return {one.version: one.state.name for one in registry.status(name)}


def test_a_version_is_closed_after_its_last_request() -> None:
    closed: list[int] = []
    registry = Registry()
    registry.add(adding(1, close=lambda: closed.append(1)))
    lease, other = registry.find("m"), registry.find("m", 1)
    registry.add(adding(2, close=lambda: closed.append(2)))
    registry.remove("m", 1)
    assert _states(registry) == {1: "UNLOADING", 2: "AVAILABLE"}
    with pytest.raises(ServingError, match="Specific"):
        registry.find("m", 1)
    with lease as model:
        assert model.version == 1
    assert closed == []
    with other:
        pass
    assert closed == [1]
    assert _states(registry) == {1: "END", 2: "AVAILABLE"}
    registry.close()
    assert closed == [1, 2]


def test_a_version_in_use_is_not_taken_twice() -> None:
    registry = Registry()
    registry.add(adding(1))
    with pytest.raises(NameTakenError, match="version 1 of model m"):
        registry.add(adding(1))
    registry.remove("m", 1)
    registry.add(adding(1))
    assert registry.versions("m") == [1]


def test_a_label_goes_with_its_version() -> None:
    registry = Registry()
    registry.add(adding(1))
    registry.add(adding(2))
    registry.set_labels("m", {"stable": 1, "canary": 2})
    with registry.find("m", label="stable") as model:
        assert model.version == 1
    registry.remove("m", 1)
    with pytest.raises(ServingError, match="label: stable"):
        registry.find("m", label="stable")
    with registry.find("m", label="canary") as model:
        assert model.version == 2
    with pytest.raises(InputError, match="version 9"):
        registry.set_labels("m", {"stable": 9})


def test_a_close_that_fails_is_counted_and_does_no_more() -> None:
    def fail() -> None:
        raise OSError("the disk is gone")

    registry = Registry()
    registry.add(adding(1, close=fail))
    registry.remove("m")
    assert registry.counters.read("close_failures") == 1
    assert _states(registry) == {1: "END"}


def test_ended_versions_are_forgotten_at_last() -> None:
    registry = Registry()
    for version in range(50):
        registry.add(adding(version))
        registry.remove("m", version)
    registry.add(adding(99))
    assert len(_states(registry)) <= 18


def test_the_latest_version_is_served_and_the_old_one_leaves_after_it(tmp_path: Path) -> None:
    registry = Registry(_load, poll_s=600)
    _put(tmp_path, 1)
    registry.watch("m", tmp_path)
    assert registry.versions("m") == [1]
    _put(tmp_path, 3)
    (tmp_path / "half-4").mkdir()
    (tmp_path / "notes.txt").touch()
    registry.refresh()
    assert _states(registry) == {1: "END", 3: "AVAILABLE"}
    registry.close()


def test_a_broken_bundle_is_refused_once_and_the_old_version_serves_on(tmp_path: Path) -> None:
    registry = Registry(_load, poll_s=600)
    _put(tmp_path, 1)
    registry.watch("m", tmp_path)
    _put(tmp_path, 2, broken=True)
    for _ in range(3):
        registry.refresh()
    (two,) = registry.status("m", 2)
    assert (two.state, two.code, two.error) == (
        VersionState.END,
        "INVALID_ARGUMENT",
        "this bundle is broken",
    )
    assert (registry.versions("m"), registry.counters.read("versions_refused")) == ([1], 1)
    (tmp_path / "2" / "broken").unlink()
    registry.refresh()
    assert registry.versions("m") == [2]
    registry.close()


def test_a_server_that_starts_with_a_broken_newest_serves_the_one_before(tmp_path: Path) -> None:
    registry = Registry(_load, poll_s=600)
    _put(tmp_path, 1)
    _put(tmp_path, 2, broken=True)
    registry.watch("m", tmp_path)
    assert registry.versions("m") == [1]
    registry.close()


def test_a_bundle_of_another_version_is_refused(tmp_path: Path) -> None:
    registry = Registry(_load, poll_s=600)
    _put(tmp_path, 1)
    (tmp_path / "1").rename(tmp_path / "2")
    registry.watch("m", tmp_path)
    assert registry.versions("m") == []
    assert "holds version 1" in registry.status("m", 2)[0].error
    assert not registry.ready()
    registry.close()


def test_latest_once_loads_once(tmp_path: Path) -> None:
    registry = Registry(_load, poll_s=600)
    registry.watch("m", tmp_path / "later", LatestOnce())
    assert not registry.ready()
    _put(tmp_path / "later", 1)
    registry.refresh()
    _put(tmp_path / "later", 2)
    registry.refresh()
    assert (registry.versions("m"), registry.ready()) == ([1], True)
    registry.close()


def test_specific_versions_are_served(tmp_path: Path) -> None:
    registry = Registry(_load, poll_s=600)
    for version in (1, 2, 3):
        _put(tmp_path, version)
    registry.watch("m", tmp_path, "specific:1,3")
    assert registry.versions("m") == [1, 3]
    registry.watch("m", tmp_path, Specific((2,)))
    assert registry.versions("m") == [2]
    registry.watch("m", tmp_path, All())
    assert registry.versions("m") == [1, 2, 3]
    registry.watch("m", tmp_path, Latest(2))
    assert registry.versions("m") == [2, 3]
    registry.close()


def test_a_version_that_is_taken_away_gives_way_but_an_empty_folder_does_not(
    tmp_path: Path,
) -> None:
    registry = Registry(_load, poll_s=600)
    _put(tmp_path, 1)
    _put(tmp_path, 2)
    registry.watch("m", tmp_path)
    (tmp_path / "2").rename(tmp_path / "gone-2")
    registry.refresh()
    assert registry.versions("m") == [1]
    (tmp_path / "1").rename(tmp_path / "gone-1")
    registry.refresh()
    assert registry.versions("m") == [1]
    registry.close()


def test_folders_are_looked_at_without_being_asked(tmp_path: Path) -> None:
    served = threading.Event()
    registry = Registry(_load, poll_s=0.01)
    registry.watch("m", tmp_path)
    registry.subscribe(lambda: served.set() if registry.versions("m") == [5] else None)
    _put(tmp_path, 5)
    assert served.wait(DEADLINE_S)
    registry.close()


def test_states_are_told_while_a_version_loads(tmp_path: Path) -> None:
    seen: list[str] = []
    registry = Registry(lambda *about: (seen.append(_states(registry)[1]), _load(*about))[1])
    _put(tmp_path, 1)
    registry.watch("m", tmp_path)
    assert seen == ["LOADING"]
    registry.close()


def test_what_is_watched_no_more_is_not_loaded_later(tmp_path: Path) -> None:
    loading, go_on = threading.Event(), threading.Event()

    def load(folder: Path, name: str) -> Model:
        if folder.name == "2":
            loading.set()
            assert go_on.wait(DEADLINE_S)
        return _load(folder, name)

    registry = Registry(load, poll_s=0.01)
    _put(tmp_path, 1)
    registry.watch("m", tmp_path)
    _put(tmp_path, 2)
    assert loading.wait(DEADLINE_S)
    threading.Timer(0.05, go_on.set).start()
    registry.unwatch("m")
    registry.remove("m")
    assert go_on.is_set()
    assert registry.versions("m") == []
    registry.close()
    assert _states(registry)[2] == "END"


def test_a_model_may_ask_another_of_the_same_registry() -> None:
    registry = Registry(threads=1)

    def ask(inputs: Any) -> Any:
        with registry.find("inner") as model:
            return model.signatures["serving_default"].run(inputs)

    registry.add(adding(1, "inner"))
    registry.add(adding(1, "outer", run=ask))
    found: list[Any] = []
    with registry.find("outer") as model:
        run, inputs = model.signatures["serving_default"].run, {"x": torch.zeros(1, 2)}
        asking = threading.Thread(target=lambda: found.append(run(inputs)), daemon=True)
        asking.start()
        asking.join(DEADLINE_S)
    assert [one["y"].tolist() for one in found] == [[[1, 1]]]
    registry.close()


@pytest.mark.parametrize("wrong", ["newest", "specific:", "specific:-1", 3])
def test_a_policy_that_is_none(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="policy is"):
        policy_of(wrong)


def test_a_registry_without_a_loader_watches_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="load="):
        Registry().watch("m", tmp_path)
