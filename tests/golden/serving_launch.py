"""Vectors of the launch utilities, in the mode that follows Monolith to its defects."""

from __future__ import annotations

import builtins
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest

from hedgerow.launch import env
from hedgerow.monolith import distribution_utils as utils
from hedgerow.monolith.launch.bps import bps_env
from hedgerow.monolith.launch.comm_bench import Windows, sent_elements, summary
from hedgerow.monolith.launch.sync_train import BroadcastHook, TelemetryHook

from .runner import Case, take
from .serving_area import AREA

BOTH = ("byteps", "horovod")
NO_FLAGS = ("enable_gpu_training", "num_ps", "gpu_placement_allowed")


class Calls:
    """What the transports were asked."""

    def __init__(self) -> None:
        self.inits: list[tuple[str, dict[str, Any]]] = []


def _module(name: str, calls: Calls, rank: int, size: int) -> ModuleType:
    module = ModuleType(f"{name}.torch")

    def init(**settings: Any) -> None:
        calls.inits.append((name, settings))

    module.__dict__.update(init=init, rank=lambda: rank, size=lambda: size)
    return module


@contextmanager
def job(importable: tuple[str, ...] | list[str], rank: int = 3, size: int = 8) -> Iterator[Calls]:
    """A process in which these transports are installed, with nothing initialised."""
    calls, modules = Calls(), {}
    for name in BOTH:
        there = name in importable
        modules[name] = ModuleType(name) if there else None
        modules[f"{name}.torch"] = _module(name, calls, rank, size) if there else None
        if there:
            modules[name].torch = modules[f"{name}.torch"]  # pyright: ignore
    fresh = env.SyncTraining()
    with (
        mock.patch.dict(sys.modules, modules),
        mock.patch.object(env.sync_training, "inited", fresh.inited),
    ):
        yield calls


def _flags(value: dict[str, Any]) -> utils.LaunchFlags:
    names = ("enable_sync_training", *NO_FLAGS)
    return utils.LaunchFlags(**{name: value[name] for name in names if name in value})


@AREA.handles("mpi_helpers", "cases")
def _helpers(case: Case) -> None:
    value = case.take({"env", "result"})
    known = ("get_mpi_rank", "get_mpi_local_rank", "get_mpi_size", "get_mpi_local_size")
    for name, wanted in take(value["result"], optional=known).items():
        helper = getattr(utils, name)
        if isinstance(wanted, dict):
            error = getattr(builtins, take(wanted, {"raises"})["raises"])
            with pytest.raises(error):
                helper(source="ompi", environ=value["env"])
        else:
            assert helper(source="ompi", environ=value["env"]) == wanted, name


@AREA.handles("enable_sync_training", "cases")
def _enabled(case: Case) -> None:
    value = case.take({"enable_sync_training", "env", "result"})
    found = utils.enable_sync_training(_flags(value), transport="reference", environ=value["env"])
    assert found is value["result"]


@AREA.handles("device_str", "cases")
def _device(case: Case) -> None:
    value = case.take(
        {
            *("mpi_local_rank_in_env", "mpi_rank", "enable_sync_training", "force_on_cpu"),
            *(*NO_FLAGS, "result"),
        }
    )
    environ = {"OMPI_COMM_WORLD_LOCAL_RANK": "0"} if value["mpi_local_rank_in_env"] else {}
    if value["mpi_rank"] is not None:
        environ["OMPI_COMM_WORLD_RANK"] = str(value["mpi_rank"])
    found = utils.get_device_str(
        value["force_on_cpu"], flags=_flags(value), transport="reference", environ=environ
    )
    assert found == value["result"]


@AREA.handles("try_init_cuda", "cases")
def _cuda(case: Case) -> None:
    value = case.take(
        {"env", "enable_sync_training", "env_after", "init_calls", "inited"},
        {"transports_importable"},
    )
    environ = dict(value["env"])
    with job(value.get("transports_importable", BOTH)) as calls:
        utils.try_init_cuda(flags=_flags(value), transport="reference", environ=environ)
        assert utils._SYNC_TRAIN_INITED is value["inited"]
    assert calls.inits == [(name, {}) for name in value["init_calls"]]
    assert {name: environ.get(name) for name in value["env_after"]} == value["env_after"]


@AREA.handles("sync_run_hooks", "cases")
def _hooks(case: Case) -> None:
    value = case.take(
        {"env", "enable_sync_training", "is_full_sync"},
        {*NO_FLAGS, "transports_importable", "hooks", "raises"},
    )
    assert ("hooks" in value) != ("raises" in value)

    def hooks() -> list[Any]:
        return utils.get_sync_run_hooks(
            value["is_full_sync"],
            flags=_flags(value),
            transport="reference",
            environ=value["env"],
        )

    with job(value.get("transports_importable", BOTH)):
        if "raises" in value:
            with pytest.raises(getattr(builtins, value["raises"])):
                hooks()
        else:
            assert [_hook(hook) for hook in hooks()] == value["hooks"]


def _hook(hook: Any) -> list[Any]:
    if isinstance(hook, TelemetryHook):
        return ["telemetry", hook.interval]
    assert isinstance(hook, BroadcastHook)
    return [hook.transport.name, "BroadcastGlobalVariablesHook", hook.root, hook.device]


@AREA.handles("session_config_gpu", "cases")
def _session(case: Case) -> None:
    value = case.take({"enable_sync_training", "env", "result"})
    found = utils.GpuOptions()
    utils.update_session_config_for_gpu(
        found, flags=_flags(value), transport="reference", environ=value["env"]
    )
    assert {name: getattr(found, name) for name in found.__slots__} == value["result"]


@AREA.handles("bps_init_env", "cases")
def _bps(case: Case) -> None:
    value = case.take({"name", "env", "uuid", "interface_address", "result"}, {"quirk"})
    wanted = take(
        value["result"],
        {"env_set", "directories_made", "init_calls", "interface_queried"},
        {"raises"},
    )
    environ, asked = dict(value["env"]), []

    def address_of(name: str) -> str:
        asked.append(name)
        return value["interface_address"]

    def start() -> None:
        utils.bps_init(value["uuid"], transport="reference", environ=environ, address_of=address_of)

    with tempfile.TemporaryDirectory() as folder, mock.patch.object(tempfile, "tempdir", folder):
        with job(["byteps"]) as calls:
            if "raises" in wanted:
                _raises(start, wanted["raises"])
            else:
                start()
        changed = {n: v for n, v in environ.items() if value["env"].get(n) != v}
        changed = {n: v.replace(folder, "<tmpdir>") for n, v in changed.items()}
        made = sorted(path.name for path in Path(folder).iterdir())
    assert [["init", settings] for _, settings in calls.inits] == wanted["init_calls"]
    if "raises" in wanted:
        # How far Monolith gets before it fails is told by where it prints: what it had set
        # until then must be right, not equally much.
        _same_where_both(changed, wanted["env_set"], value)
    else:
        assert changed == wanted["env_set"]
        assert made == sorted(wanted["directories_made"])
        assert asked == wanted["interface_queried"]


def _raises(start: Any, wanted: list[str | None]) -> None:
    kind, text = wanted
    with pytest.raises(getattr(builtins, str(kind))) as caught:
        start()
    assert (text or "").strip("'") in str(caught.value)


def _same_where_both(changed: dict[str, str], wanted: dict[str, str], value: Any) -> None:
    assert changed or not wanted, "nothing was set before the error"
    rest = {"UCX_NET_DEVICES": "x", "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "BYTEPS_NUMA_ID": "0"}
    rest |= {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
    whole = bps_env(
        value["uuid"], rest | value["env"], lambda _: value["interface_address"], Path("<tmpdir>")
    )
    assert wanted.items() <= dict(whole).items()
    assert all(wanted.get(name, text) == text for name, text in changed.items())


@AREA.handles("init_sync_train", "cases")
def _init(case: Case) -> None:
    value = case.take(
        {
            *("env", "before", "merge_sync_training_ckpt", "transport_rank", "transport_size"),
            *("transports_importable", "calls", "result"),
        },
        {"quirk"},
    )
    wanted = take(value["result"], {"config", "init_calls", "inited"})
    merge = value["merge_sync_training_ckpt"]
    conf = utils.SyncTrainConfig(**value["before"], merge_sync_training_ckpt=merge)
    rank, size = value["transport_rank"], value["transport_size"]
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(tempfile, "tempdir", folder),
        job(value["transports_importable"], rank, size) as calls,
    ):
        environ = dict(value["env"])
        for _ in range(value["calls"]):
            utils.init_sync_train_and_update_conf(conf, transport="reference", environ=environ)
        assert utils._SYNC_TRAIN_INITED is wanted["inited"]
    assert {name: getattr(conf, name) for name in conf.__slots__} == wanted["config"]
    assert [name for name, _ in calls.inits] == wanted["init_calls"]


@AREA.handles("goodput", "cases")
def _goodput(case: Case) -> None:
    value = case.take(
        {
            *("name", "mode", "total_len", "world_size", "seconds_per_20_iterations"),
            *("latency_ms", "goodputs_all", "returned", "summary"),
        }
    )
    length = value["total_len"]
    run = Windows(sent_elements(value["mode"], length), value["seconds_per_20_iterations"])
    assert run.latency_ms == pytest.approx(value["latency_ms"], rel=1e-12)
    assert run.goodputs_gbps == pytest.approx(value["goodputs_all"], rel=1e-12)
    assert run.kept == pytest.approx(value["returned"], rel=1e-12)
    asked, mean = summary(length, run.kept)
    assert asked == value["summary"][0]
    assert (mean is None) == (value["summary"][1] is None)
    assert mean is None or mean == pytest.approx(value["summary"][1], rel=1e-12)
