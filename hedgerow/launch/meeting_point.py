"""Where the processes of a job meet: the address and the port of rank 0."""

from __future__ import annotations

import re
import zlib

from ..core.errors import ConfigError
from . import env
from .env import Environ
from .rank_info import RankInfo

# Below the ports that Linux gives to outgoing connections (32768..60999), above the well-known.
_FIRST_PORT, _PORTS = 15000, 15000
_JOB_NAMES = (
    *("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID"),
    *("SLURM_JOB_ID", "SLURM_STEP_ID"),
)


def meeting_point(
    info: RankInfo,
    *,
    master_addr: str | None = None,
    master_port: int | None = None,
    environ: Environ | None = None,
) -> tuple[str, int]:
    """Address and port: the arguments, MASTER_ADDR and MASTER_PORT, or what the launcher implies.

    >>> info = RankInfo(rank=0, world_size=2, local_world_size=2, launcher="ompi")
    >>> meeting_point(info, environ={"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"})
    ('10.0.0.1', 29500)
    >>> meeting_point(info, environ={"PMIX_NAMESPACE": "1589"})[0]
    '127.0.0.1'
    """
    environ = env.current() if environ is None else environ
    address = env.choose(
        "master_addr", argument=master_addr, variable="MASTER_ADDR", environ=environ, default=""
    )
    port = env.choose(
        "master_port",
        argument=master_port,
        variable="MASTER_PORT",
        environ=environ,
        parse=int,
        default=0,
    )
    return address or _implied_address(info, environ), port or _implied_port(info, environ)


def _implied_address(info: RankInfo, environ: Environ) -> str:
    if info.one_machine:
        return "127.0.0.1"
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST")
    if info.launcher == "slurm" and nodes:
        return first_host(nodes)
    raise ConfigError(
        f"{info.world_size} processes, {info.local_world_size} of them here: rank 0 is on some "
        f"machine that {info.launcher} does not tell; set MASTER_ADDR to its name for every "
        f"process (mpirun -x MASTER_ADDR=host)."
    )


def _implied_port(info: RankInfo, environ: Environ) -> int:
    """The same number in every process of a job, another one in other jobs."""
    job = ".".join(environ[name] for name in _JOB_NAMES if name in environ)
    if not job:
        raise ConfigError(
            f"{info.launcher} gives the job no number to derive a port from; set MASTER_PORT to "
            f"a free port for every process."
        )
    return _FIRST_PORT + zlib.crc32(job.encode()) % _PORTS


def first_host(nodes: str) -> str:
    """The first machine of SLURM's short list.

    >>> first_host("gpu[07-09,12],login"), first_host("a,b")
    ('gpu07', 'a')
    """
    found = re.match(r"([^,\[]+)(?:\[([^\],-]+)[^\]]*\]([^,]*))?", nodes)
    if found is None:
        raise ConfigError(f"the list of machines is {nodes!r}; it must read like 'gpu[07-09]'.")
    return "".join(part or "" for part in found.groups())
