"""Which process of a job this is, and where the job meets."""

from __future__ import annotations

import logging

import pytest

from hedgerow.core.errors import ConfigError, InputError
from hedgerow.launch.process_group import device_index, first_host, meeting_point
from hedgerow.launch.rank_info import RankInfo, get_mpi_rank, get_mpi_size, rank_info

OMPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "16",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}
TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "7",
    "SLURM_NODEID": "2",
    "SLURM_TASKS_PER_NODE": "2(x3),1",
    "SLURM_JOB_NODELIST": "gpu[07-10]",
    "SLURM_JOB_ID": "991",
}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}


def _numbers(info: RankInfo) -> tuple[int, int, int, int, str]:
    return (info.rank, info.local_rank, info.world_size, info.local_world_size, info.launcher)


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({}, (0, 0, 1, 1, "none")),
        (OMPI, (5, 1, 16, 4, "ompi")),
        (TORCHRUN, (3, 1, 8, 2, "torchrun")),
        ({"RANK": "1", "WORLD_SIZE": "2"}, (1, 1, 2, 2, "torchrun")),
        (MPICH, (1, 1, 2, 2, "mpich")),
        (SLURM, (5, 1, 7, 2, "slurm")),
        ({**SLURM, "SLURM_STEP_NUM_TASKS": "6"}, (5, 1, 6, 2, "slurm")),
        (OMPI | SLURM, (5, 1, 16, 4, "ompi")),
        (TORCHRUN | SLURM, (3, 1, 8, 2, "torchrun")),
        ({**SLURM, "SLURM_JOB_NAME": "bash"}, (0, 0, 1, 1, "none")),
        ({"OMPI_COMM_WORLD_RANK": "5"} | TORCHRUN, (3, 1, 8, 2, "torchrun")),
    ],
)
def test_each_launcher(environ: dict[str, str], wanted: tuple[object, ...]) -> None:
    assert _numbers(rank_info(environ=environ)) == wanted


def test_slurm_without_counts_by_node() -> None:
    environ = {"SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_NTASKS": "2"}
    assert _numbers(rank_info(environ=environ)) == (1, 1, 2, 2, "slurm")
    environ |= {"SLURM_NTASKS": "8", "SLURM_NTASKS_PER_NODE": "4"}
    assert rank_info(environ=environ).local_world_size == 4


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        (OMPI | {"OMPI_COMM_WORLD_RANK": "x"}, "OMPI_COMM_WORLD_RANK is 'x'"),
        (TORCHRUN | {"WORLD_SIZE": ""}, "WORLD_SIZE is ''"),
        (TORCHRUN | {"RANK": "8"}, "rank 8 of world_size 8"),
        (TORCHRUN | {"RANK": "-1"}, "rank -1"),
        (TORCHRUN | {"LOCAL_RANK": "2"}, "local_rank 2 of local_world_size 2"),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "9"}, "9 processes on this machine and 8 in all"),
        ({"RANK": "1"}, "RANK is set but WORLD_SIZE is not"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is set but RANK is not"),
        (OMPI | TORCHRUN, "process 5 of 16, RANK and WORLD_SIZE say 3 of 8"),
        (SLURM | {"SLURM_TASKS_PER_NODE": "two"}, "SLURM_TASKS_PER_NODE is 'two'"),
        (SLURM | {"SLURM_NODEID": "9"}, "SLURM_NODEID is 9"),
    ],
)
def test_contradictions_and_bad_numbers_are_named(environ: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        rank_info(environ=environ)


def test_one_launcher_can_be_asked_for() -> None:
    assert rank_info("torchrun", OMPI | TORCHRUN).rank == 3
    assert rank_info("ompi", TORCHRUN).launcher == "none"
    with pytest.raises(InputError, match="source is 'smoke signals'"):
        rank_info("smoke signals", {})


def test_a_default_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert get_mpi_rank(environ={}) == 0
    assert [record.message for record in caplog.records] == [
        "OMPI_COMM_WORLD_RANK is not set: 0 is taken"
    ]
    assert get_mpi_size(environ={"WORLD_SIZE": "10"}) == 10


def test_where_a_job_meets() -> None:
    here = RankInfo(rank=1, world_size=2, local_rank=1, local_world_size=2, launcher="ompi")
    wide = RankInfo(rank=5, world_size=7, local_rank=1, local_world_size=2, launcher="slurm")
    address, port = meeting_point(here, environ={"PMIX_NAMESPACE": "1"})
    assert address == "127.0.0.1"
    assert 15000 <= port < 30000
    assert meeting_point(here, environ={"PMIX_NAMESPACE": "2"})[1] != port
    assert meeting_point(wide, environ=SLURM)[0] == "gpu07"
    given = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    assert meeting_point(wide, environ=given) == ("10.0.0.1", 29500)
    assert meeting_point(wide, master_addr="h", master_port=1, environ=given) == ("h", 1)


def test_a_job_that_cannot_meet_says_what_to_set() -> None:
    wide = RankInfo(rank=5, world_size=7, local_rank=1, local_world_size=2, launcher="ompi")
    with pytest.raises(ConfigError, match="set MASTER_ADDR"):
        meeting_point(wide, environ={"PMIX_NAMESPACE": "1"})
    with pytest.raises(ConfigError, match="set MASTER_PORT"):
        meeting_point(wide, master_addr="h", environ={})
    with pytest.raises(ConfigError, match="MASTER_PORT is 'x'"):
        meeting_point(wide, master_addr="h", environ={"MASTER_PORT": "x"})


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("n1", "n1"), ("n1,n2", "n1"), ("a[3,5]", "a3"), ("a[03-09]b,c", "a03b"), ("x-1", "x-1")],
)
def test_the_first_machine_of_a_list(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


def test_a_process_without_a_device_is_told() -> None:
    with pytest.raises(ConfigError, match="local rank 4 has no device: 4 are visible"):
        device_index(4, 4)
