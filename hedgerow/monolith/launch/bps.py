"""Starts BytePS with the environment variables that it expects."""

from __future__ import annotations

import logging
import socket
import struct
import tempfile
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path

from ...core.errors import LaunchError, VariableMissingError
from ...launch import env
from ...launch.env import Environ
from .gpu_options import uses_gdr
from .transports import TorchTransport, byteps, if_installed, is_reference

_ALL_NICS = "mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1,eth0,eth1,eth2,eth3"
_P2P_BYTES = 2048000 * 128 * 2  # over all processes
_MANY_PROCESSES = 128
# Defaults of variables that the user may set.
_KEPT = {
    "BYTEPS_OMP_THREAD_PER_GPU": "1",
    "BYTEPS_TELEMETRY_ON": "0",
    "BYTEPS_LOG_LEVEL": "info",
    "BYTEPS_SERVER_DIRECT_RESPONSE": "2",
    "BYTEPS_KEY_HASH_FN": "djb2-colocate",
    "BYTEPS_UCX_SHORT_THRESH": "0",
    "PSLITE_UCX_RNDV_THRESH": "8192",
    "BYTEPS_WORKER_LOCAL_ROOT": "-1",
}
Pairs = Iterator[tuple[str, str]]


def bps_env(
    uuid: str,
    environ: Environ,
    address_of: Callable[[str], str],
    temporary: Path,
    *,
    reference: bool = False,
) -> Pairs:
    """Yields all variables with their values. Variables with defaults keep the value that is set.

    `address_of` returns the IPv4 address of a network interface. With `reference`, a job without
    UCX_NET_DEVICES that binds no network card raises, as in Monolith; otherwise UCX chooses.

    >>> job = {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "16",
    ...        "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
    >>> found = dict(bps_env("job7", job, lambda name: "10.1.2.3", Path("/tmp")))
    >>> found["BYTEPS_SOCKET_PATH"], found["BYTEPS_P2P_PARTITION_BYTES"]
    ('/tmp/bps_job7_socket_1', '32768000')
    """
    yield _kept("BYTEPS_ALLTOALL_SESSION_SIZE", "3", environ)
    local_size = environ.get("BYTEPS_LOCAL_SIZE", environ.get("OMPI_COMM_WORLD_LOCAL_SIZE"))
    if local_size is None:
        raise VariableMissingError(
            "OMPI_COMM_WORLD_LOCAL_SIZE is not set; start the job with mpirun, or set "
            "BYTEPS_LOCAL_SIZE to the number of processes on this machine."
        )
    yield "BYTEPS_LOCAL_SIZE", local_size
    here = env.whole("BYTEPS_LOCAL_SIZE", {"BYTEPS_LOCAL_SIZE": local_size})
    rank, size = (env.whole(f"OMPI_COMM_WORLD_{name}", environ) for name in ("RANK", "SIZE"))
    local_rank = rank % here
    binding = env.whole("BYTEPS_GPU_NIC_BINDING_MODE", environ, default=0) != 0
    interface = f"eth{local_rank // 2}" if binding else environ.get("DMLC_INTERFACE", "eth0")
    if binding:
        yield from _bound(local_rank, environ)
    address = address_of(interface)
    yield "UCX_RDMA_CM_SOURCE_ADDRESS", address
    yield "DMLC_NODE_HOST", address
    if reference and not binding and "UCX_NET_DEVICES" not in environ:
        raise VariableMissingError(
            "UCX_NET_DEVICES is not set; set it to the network devices to use, or set "
            "BYTEPS_GPU_NIC_BINDING_MODE=1."
        )
    yield from _job(uuid, rank, size, environ)
    yield "BYTEPS_LOCAL_RANK", str(local_rank)
    yield "BYTEPS_SOCKET_PATH", str(temporary / f"bps_{uuid}_socket_{rank // here}")
    yield from (_kept(name, value, environ) for name, value in _KEPT.items())
    yield _kept("BYTEPS_P2P_PARTITION_BYTES", str(int(_P2P_BYTES / size)), environ)
    part = "1024000" if size < _MANY_PROCESSES else "512000"
    yield _kept("BYTEPS_PARTITION_BYTES", part, environ)


def _kept(name: str, value: str, environ: Environ) -> tuple[str, str]:
    return name, environ.get(name, value)


def _bound(local_rank: int, environ: Environ) -> Pairs:
    """Binds each pair of GPUs to its own network card."""
    if uses_gdr(environ):
        env.whole("BYTEPS_NUMA_ID", environ)  # raises if it is missing; BytePS would crash
        yield "CUDA_VISIBLE_DEVICES", str(local_rank)
        yield "BYTEPS_PIN_MEMORY", "1"
        yield _kept("BYTEPS_PIN_MEMORY_CPU", "1", environ)
        yield "DMLC_NUM_CPU_DEV", "0"
        yield "DMLC_NUM_GPU_DEV", "1"
    yield _kept("BYTEPS_USE_GDR_ALLREDUCE", "1", environ)
    every = environ.get("BYTEPS_WITH_ALL_NICS") == "1"
    yield "UCX_NET_DEVICES", _ALL_NICS if every else f"mlx5_{local_rank // 2}:1"


def _job(uuid: str, rank: int, size: int, environ: Environ) -> Pairs:
    yield _kept("PSLITE_UCX_TLS", "rc_x,tcp,self,cuda", environ)
    yield "DMLC_ROLE", "joint"
    yield _kept("DMLC_ENABLE_UCX", "1", environ)
    yield "DMLC_WORKER_ID", str(rank)
    yield "DMLC_NUM_WORKER", str(size)
    yield "DMLC_NUM_SERVER", str(size)
    yield "BYTEPS_UUID", uuid
    yield "BYTEPS_FORCE_DISTRIBUTED", "1"
    yield "BYTEPS_UCX_FORCE_REQ_ORDER", "1"


_log = logging.getLogger(__name__)
_GET_ADDRESS = 0x8915  # SIOCGIFADDR on Linux
# Variables for GPUs and network cards, which help when a job hangs at its start.
_LOGGED = ("BYTEPS_PIN_MEMORY", "BYTEPS_USE_GDR", "CUDA_", "DMLC_N", "PSLITE_UCX_", "UCX_")


def interface_address(name: str) -> str:
    """Returns the first IPv4 address of a network interface, or an empty string.

    >>> interface_address("lo"), interface_address("no such card")
    ('127.0.0.1', '')
    """
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            request = struct.pack("256s", name.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(asking.fileno(), _GET_ADDRESS, request)[20:24])
        except OSError as error:
            _log.info("interface %s has no IPv4 address: %s", name, error)
            return ""


def _address_or_host(name: str, address_of: Callable[[str], str]) -> str:
    address = address_of(name)
    if address:
        return address
    try:
        found = socket.gethostbyname(socket.gethostname())
    except OSError as error:
        raise LaunchError(
            f"interface {name!r} has no IPv4 address and neither has this machine's name "
            f"({error}); set DMLC_INTERFACE to an interface that has one."
        ) from error
    _log.warning("interface %s has no IPv4 address: %s of the host name is taken", name, found)
    return found


def bps_init(
    uuid: str,
    *,
    transport: str = "auto",
    environ: MutableMapping[str, str] | None = None,
    address_of: Callable[[str], str] = interface_address,
) -> None:
    """Sets the environment of BytePS for job `uuid` and starts it.

    If BytePS is not installed, starts torch.distributed instead. With `transport="reference"`
    variables are set one by one, as in Monolith, so an error leaves some of them set. Otherwise an
    error leaves the environment unchanged.
    """
    environ = env.current() if environ is None else environ
    reference = is_reference(transport)
    chosen = byteps() if reference else if_installed("byteps")
    if chosen is None:
        _log.warning("BytePS is not installed: torch.distributed is started instead")
        TorchTransport().init()
        return

    def address(name: str) -> str:
        return address_of(name) if reference else _address_or_host(name, address_of)

    temporary = Path(tempfile.gettempdir())
    pairs = bps_env(uuid, dict(environ), address, temporary, reference=reference)
    for name, value in pairs if reference else list(pairs):
        environ[name] = value
        if name.startswith(_LOGGED):
            _log.info("BytePS: %s=%s", name, value)
        if name == "BYTEPS_SOCKET_PATH":
            Path(value).mkdir(parents=True, exist_ok=True)
    chosen.module.init(lazy=False)
