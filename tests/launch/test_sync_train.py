"""Synchronous training with `transport="auto"`: torch.distributed where nothing else is there."""

from __future__ import annotations

import io
import logging
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

import hedgerow as hr
from hedgerow.core.errors import InputError, LaunchError, VariableMissingError
from hedgerow.launch.process_group import end_process_group, start_process_group
from hedgerow.monolith import distribution_utils as utils
from hedgerow.monolith.distributed_serving_ops import create_parameter_sync_clients
from hedgerow.monolith.launch import comm_bench
from hedgerow.monolith.launch.bps import bps_env
from hedgerow.monolith.launch.gpu_options import PinnedTensors
from hedgerow.monolith.launch.sync_train import BroadcastHook, TelemetryHook
from hedgerow.monolith.launch.transports import ModuleTransport, TorchTransport, asked_for
from hedgerow.train.loop import Trainer

from ..golden.serving_launch import job

ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
FLAGS = utils.LaunchFlags(enable_sync_training=True)
OMPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "16",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}


@pytest.fixture(autouse=True)
def _no_group(tmp_path: Path) -> Iterator[None]:
    with mock.patch.object(tempfile, "tempdir", str(tmp_path)):
        yield
    end_process_group()


def _conf(**values: Any) -> utils.SyncTrainConfig:
    return utils.SyncTrainConfig(uuid="u1", model_dir="/m", num_ps=5, **values)


def test_init_uses_torch_and_updates_the_config_once() -> None:
    conf = _conf()
    with job([]):
        for _ in range(2):
            utils.init_sync_train_and_update_conf(conf, environ=dict(ALONE))
        assert utils._SYNC_TRAIN_INITED is True
    assert dist.is_initialized()
    assert conf.model_dir == "/m/u1/index-0000"
    assert (conf.num_ps, conf.index, conf.num_workers) == (0, 0, 1)
    assert conf.reorder_fids_in_data_pipeline
    assert not conf.enable_variable_partition


@pytest.mark.parametrize("shared", ["0", "1"])
def test_init_with_byteps_sets_latch_and_folder_once(shared: str, tmp_path: Path) -> None:
    conf = _conf()
    environ = {**OMPI, "MONOLITH_WITH_BYTEPS_BCAST": shared, "MONOLITH_WITH_BYTEPS": "1"}
    with job(["byteps", "horovod"]) as calls:
        for _ in range(2):
            utils.init_sync_train_and_update_conf(
                conf, environ=environ, address_of=lambda _: "10.0.0.1"
            )
        assert utils._SYNC_TRAIN_INITED is True
    names = [name for name, _ in calls.inits]
    assert names == (["byteps", "horovod"] if shared == "0" else ["byteps"])
    assert conf.model_dir == "/m/u1/index-0003"
    assert environ["DMLC_NODE_HOST"] == "10.0.0.1"
    assert (tmp_path / "bps_u1_socket_1").is_dir()


def test_byteps_asked_for_but_missing_is_told_and_torch_takes_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    conf = _conf()
    with job([]), caplog.at_level(logging.WARNING):
        environ = {**ALONE, "MONOLITH_WITH_BYTEPS": "1"}
        utils.init_sync_train_and_update_conf(conf, environ=environ)
    assert "asks for BytePS, which is not installed" in caplog.text
    assert conf.num_workers == 1
    assert conf.num_ps == 0


def test_a_missing_library_in_reference_mode_warns_once_and_leaves_the_config(
    caplog: pytest.LogCaptureFixture,
) -> None:
    conf = _conf()
    with job([]), caplog.at_level(logging.WARNING):
        utils.init_sync_train_and_update_conf(conf, transport="reference", environ=dict(ALONE))
    assert len(caplog.records) == 1
    assert conf == _conf()


def test_hooks_use_torch_and_broadcast_from_rank_0() -> None:
    start_process_group()
    with job([]):
        broadcast, telemetry = utils.get_sync_run_hooks(True, flags=FLAGS, environ=ALONE)
    assert isinstance(broadcast, BroadcastHook)
    assert isinstance(broadcast.transport, TorchTransport)
    assert isinstance(telemetry, TelemetryHook)
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    broadcast.on_start(model, None, 0)
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
    assert [(t.name, t.count) for t in broadcast.transport.timers.take()] == [("broadcast", 2)]


def test_telemetry_tells_every_50_steps_on_rank_0(caplog: pytest.LogCaptureFixture) -> None:
    start_process_group()
    carrier = TorchTransport()
    hook = TelemetryHook(carrier)
    hook.on_start(nn.Linear(1, 1), None, 0)
    carrier.all_to_all(torch.ones(4), [4])
    carrier.average(torch.ones(4))
    with caplog.at_level(logging.INFO):
        hook.after_step(50)
        assert caplog.text == ""
        hook.after_step(51)
    assert "alltoall mean" in caplog.text
    assert "push_pull mean" in caplog.text
    assert "count 1" in caplog.text


def test_try_init_cuda_starts_torch_in_a_job() -> None:
    environ = dict(ALONE)
    with job([]):
        utils.try_init_cuda(flags=FLAGS, environ=environ)
        assert utils._SYNC_TRAIN_INITED is True
    assert dist.is_initialized()
    assert environ["CUDA_VISIBLE_DEVICES"] == "0"
    assert environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_try_init_cuda_names_a_bad_variable() -> None:
    environ = ALONE | {"MONOLITH_WITH_HOROVOD": "maybe"}
    with job([]), pytest.raises(ValueError, match="MONOLITH_WITH_HOROVOD is 'maybe'"):
        utils.try_init_cuda(flags=FLAGS, environ=environ)


def test_any_launcher_counts_as_a_job() -> None:
    assert utils.enable_sync_training(FLAGS, environ=ALONE)
    assert not utils.enable_sync_training(FLAGS, transport="reference", environ=ALONE)
    assert not utils.enable_sync_training(FLAGS, environ={"RANK": "0"})  # half a job
    with pytest.raises(InputError, match="transport is 'ref'"):
        asked_for({"MONOLITH_WITH_BYTEPS": "1"}, "ref")


def test_what_the_environment_asks_for() -> None:
    with job(["byteps"]):
        assert asked_for({"MONOLITH_WITH_BYTEPS": "true"}).name == "byteps"
        assert asked_for({"MONOLITH_WITH_HOROVOD": "1"}).name == "torch"
        with pytest.raises(ModuleNotFoundError):
            asked_for({"MONOLITH_WITH_HOROVOD": "1"}, "reference")


def test_a_module_carries_values_under_its_own_names() -> None:
    module = mock.Mock(spec=["push_pull", "broadcast_parameters", "alltoall_cpu2gpu", "size"])
    carrier, value = ModuleTransport("byteps", module), torch.ones(2)
    carrier.average(value)
    module.push_pull.assert_called_once_with(value, average=True, name="average")
    carrier.broadcast(value, 0)
    module.broadcast_parameters.assert_called_once_with({"bucket": value}, root_rank=0)
    module.alltoall_cpu2gpu.return_value = value
    assert carrier.all_to_all(value, [1, 1], "alltoall_cpu2gpu") is value
    (sent,), given = module.alltoall_cpu2gpu.call_args
    assert sent is value
    assert {name: sizes.tolist() for name, sizes in given.items()} == {
        "splits": [1, 1],
        "recv_splits": [1, 1],
    }
    with pytest.raises(NotImplementedError, match="has no alltoall;"):
        carrier.all_to_all(value, [1, 1])
    horovod = mock.Mock(spec=["alltoall"])
    horovod.alltoall.return_value = (value, torch.tensor([1, 1]))
    assert ModuleTransport("horovod", horovod).all_to_all(value, [1, 1]) is value
    assert list(horovod.alltoall.call_args.kwargs) == ["splits"]


@pytest.mark.parametrize(
    ("src_gpu", "dst_gpu", "op"),
    [
        (False, True, "alltoall_cpu2gpu"),
        (True, False, "alltoall_gpu2cpu"),
        (True, True, "alltoall"),
        (False, False, "alltoall"),
    ],
)
def test_the_exchange_is_chosen_by_where_values_are(
    src_gpu: bool, dst_gpu: bool, op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a GPU: what would be on one is a tensor of this memory."""
    called: list[tuple[str, list[int], list[int]]] = []

    def exchange(name: str) -> Any:
        def call(tensor: torch.Tensor, splits: Any, recv_splits: Any) -> torch.Tensor:
            called.append((name, splits.tolist(), recv_splits.tolist()))
            return tensor

        return call

    module = mock.Mock(spec=["alltoall", "alltoall_cpu2gpu", "alltoall_gpu2cpu", "push_pull"])
    module.rank, module.size = lambda: 0, lambda: 1
    module.push_pull = lambda tensor, average, name: tensor
    for name in ("alltoall", "alltoall_cpu2gpu", "alltoall_gpu2cpu"):
        setattr(module, name, exchange(name))
    monkeypatch.setattr(comm_bench, "_gpu", lambda: torch.device("cpu"))
    utils.byteps_benchmark_a2a(
        64,
        40,
        dst_gpu,
        src_gpu,
        stream=io.StringIO(),
        transport=ModuleTransport("byteps", module),
    )
    elements = 64 if src_gpu or dst_gpu else 8
    assert {(name, *map(tuple, sizes)) for name, *sizes in called} == {
        (op, (elements,), (elements,))
    }


def test_bps_init_leaves_no_half_environment() -> None:
    environ: dict[str, str] = {}
    with job(["byteps"]) as calls, pytest.raises(VariableMissingError, match="LOCAL_SIZE"):
        utils.bps_init("u1", environ=environ)
    assert environ == {}
    assert calls.inits == []


def test_an_interface_without_address_takes_the_hosts_or_says_so() -> None:
    def no_name(name: str) -> str:
        raise OSError("no such name")

    environ = dict(OMPI)
    with job(["byteps"]):
        with mock.patch.object(socket, "gethostbyname", return_value="10.9.8.7"):
            utils.bps_init("u1", environ=environ, address_of=lambda _: "")
        assert environ["DMLC_NODE_HOST"] == "10.9.8.7"
        with (
            mock.patch.object(socket, "gethostbyname", no_name),
            pytest.raises(LaunchError, match="interface 'eth0' has no IPv4 address"),
        ):
            utils.bps_init("u1", environ=dict(OMPI), address_of=lambda _: "")


def test_monolith_fails_without_network_devices() -> None:
    with job(["byteps"]) as calls, pytest.raises(KeyError, match="UCX_NET_DEVICES"):
        utils.bps_init(
            "u1", transport="reference", environ=dict(OMPI), address_of=lambda _: "10.0.0.1"
        )
    assert calls.inits == []


def test_all_cards_and_backward_gdr(tmp_path: Path) -> None:
    environ = OMPI | {
        "BYTEPS_GPU_NIC_BINDING_MODE": "1",
        "BYTEPS_WITH_ALL_NICS": "1",
        "MONOLITH_WITH_BYTEPS_BWD_GDR": "1",
        "BYTEPS_NUMA_ID": "0",
        "OMPI_COMM_WORLD_SIZE": "128",
    }
    with job(["byteps"]):
        utils.bps_init("u1", environ=environ, address_of=lambda name: f"address of {name}")
    assert environ["UCX_NET_DEVICES"].endswith("eth0,eth1,eth2,eth3")
    assert (
        dict(bps_env("u1", environ | {"BYTEPS_WITH_ALL_NICS": "2"}, str, tmp_path))[
            "UCX_NET_DEVICES"
        ]
        == "mlx5_0:1"
    )
    assert environ["CUDA_VISIBLE_DEVICES"] == "1"
    assert environ["DMLC_NODE_HOST"] == "address of eth0"
    assert environ["BYTEPS_PARTITION_BYTES"] == "512000"
    assert environ["BYTEPS_P2P_PARTITION_BYTES"] == "4096000"


def test_the_door_shows_what_is_remembered() -> None:
    with job([]):
        assert utils._SYNC_TRAIN_INITED is False


def test_enable_bps_is_read_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, wanted in (("", 0), ("0", 0), ("1", 1), ("true", 1)):
        monkeypatch.setenv("MONOLITH_WITH_BYTEPS", text)
        assert utils.enable_bps == wanted
    monkeypatch.setenv("MONOLITH_WITH_BYTEPS", "maybe")
    with pytest.raises(ValueError, match="MONOLITH_WITH_BYTEPS is 'maybe'"):
        utils.enable_bps  # noqa: B018
    with job([]), pytest.raises(ValueError, match="MONOLITH_WITH_BYTEPS is 'maybe'"):
        utils.init_sync_train_and_update_conf(_conf())
    code = "import hedgerow.monolith.distribution_utils, hedgerow.launch.env; print('imported')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "imported"


@pytest.mark.parametrize(("text", "on"), [("2", True), ("-1", True), (" 1 ", True), ("00", False)])
def test_monolith_takes_every_number_but_0_as_on(text: str, on: bool) -> None:
    reference: dict[str, Any] = {"flags": FLAGS, "transport": "reference"}
    environ = {**OMPI, "UCX_NET_DEVICES": "x", "MONOLITH_WITH_BYTEPS": text}
    with job(["byteps", "horovod"]) as calls:
        (hook,) = utils.get_sync_run_hooks(environ=environ, **reference)
        assert isinstance(hook, BroadcastHook)
        assert hook.transport.name == ("byteps" if on else "horovod")
        options = utils.GpuOptions()
        gdr = environ | {"MONOLITH_WITH_BYTEPS_FWD_GDR": "1"}
        utils.update_session_config_for_gpu(options, environ=gdr, **reference)
        assert options.allow_growth is not on
        utils.init_sync_train_and_update_conf(_conf(), transport="reference", environ=environ)
    assert [name for name, _ in calls.inits] == ["byteps" if on else "horovod"]
    with job(["byteps"]) as calls:
        utils.try_init_cuda(environ=dict(environ), **reference)
    assert [name for name, _ in calls.inits] == ["byteps"] * on


def test_monolith_takes_no_words() -> None:
    environ = {**OMPI, "MONOLITH_WITH_BYTEPS": "true"}
    with job(["byteps"]), pytest.raises(ValueError, match="MONOLITH_WITH_BYTEPS is 'true'"):
        utils.get_sync_run_hooks(flags=FLAGS, transport="reference", environ=environ)


def test_what_byteps_alone_reads_is_not_read_without_it() -> None:
    with job([]):
        environ = {**ALONE, "MONOLITH_WITH_BYTEPS_BCAST": "all"}
        conf = _conf()
        utils.init_sync_train_and_update_conf(conf, environ=environ)
    assert conf.num_workers == 1


def test_what_monolith_logs_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    environ = OMPI | {
        "MONOLITH_WITH_BYTEPS": "1",
        "BYTEPS_GPU_NIC_BINDING_MODE": "1",
        "MONOLITH_WITH_BYTEPS_FWD_GDR": "1",
        "BYTEPS_NUMA_ID": "0",
    }
    with job(["byteps"]), caplog.at_level(logging.INFO):
        utils.init_sync_train_and_update_conf(
            _conf(), environ=dict(environ), address_of=lambda _: "10.0.0.1"
        )
        utils.get_sync_run_hooks(flags=FLAGS, environ=environ)
        utils.update_session_config_for_gpu(utils.GpuOptions(), flags=FLAGS, environ=environ)
        create_parameter_sync_clients(2)
    for line in (
        "entering synchronous training of job 'u1'",
        "synchronous training over byteps: rank 3 of 8",
        "BytePS: UCX_NET_DEVICES=mlx5_0:1",
        "BytePS: BYTEPS_USE_GDR_ALLREDUCE=1",
        "BytePS: UCX_RDMA_CM_SOURCE_ADDRESS=10.0.0.1",
        "BytePS broadcast is enabled",
        "force_gpu_compatible is on",
        "BytePS uses GDR",
        "2 sync clients are made",
    ):
        assert line in caplog.text, line


def test_the_training_loop_calls_the_hooks_of_monolith(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start_process_group()
    with job([]):
        hooks = utils.get_sync_run_hooks(True, flags=FLAGS, environ=ALONE)
    broadcast, telemetry = hooks
    telemetry.interval = 1  # type: ignore[union-attr]
    model = hr.models.DeepFM([hr.Table("user", 4)], dense=4)
    before = [one.clone() for one in model.parameters()]
    source = hr.data.clicks(batch_size=16, steps=4)
    trainer = Trainer(model, torch.optim.SGD(model.parameters()), source, hooks=hooks)
    with caplog.at_level(logging.INFO):
        broadcast.transport.average(torch.ones(1))
        trainer.run()
    assert "push_pull mean" in caplog.text
    assert telemetry.last_step == 4  # type: ignore[union-attr]
    assert broadcast.transport.timers is not None
    assert not all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_new_tensors_are_pinned_if_gpus_want_them() -> None:
    asked: list[dict[str, Any]] = []

    def empty(*_: object, **given: Any) -> None:
        asked.append(given)

    mode = PinnedTensors()
    with mock.patch("hedgerow.monolith.launch.gpu_options._FACTORIES", frozenset({empty})):
        for given in ({}, {"device": "cpu"}, {"device": "cuda"}, {"pin_memory": False}):
            mode.__torch_function__(empty, (), (3,), given)
    pinned = {"pin_memory": True}
    assert asked == [pinned, {"device": "cpu", **pinned}, {"device": "cuda"}, {"pin_memory": False}]


def test_the_door_has_no_other_variables() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        utils.nonsense  # noqa: B018
