"""Starts synchronous training: which transport, once, and what the job's config becomes."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, MutableMapping

from ..core.errors import LaunchError
from . import bps, env
from .env import sync_training
from .flags import LaunchFlags, SyncTrainConfig, is_reference, switched_on
from .rank_info import get_mpi_local_rank
from .transports import (
    TorchTransport,
    Transport,
    asked_for,
    byteps,
    horovod,
    if_installed,
    launcher_found,
)

_log = logging.getLogger(__name__)
Changing = MutableMapping[str, str]


def try_init_cuda(
    *, flags: LaunchFlags, transport: str = "auto", environ: Changing | None = None
) -> None:
    """Gives each process of a job its own GPU, and starts the transport if it trains in step.

    As in the original, whatever goes wrong in `transport="reference"` is logged, not raised.
    """
    environ = env.current() if environ is None else environ
    if not is_reference(transport):
        _init_cuda(flags, transport, environ)
        return
    try:
        _init_cuda(flags, transport, environ)
    except Exception as error:
        _log.info("no CUDA or transport is set up: %s", error)


def _init_cuda(flags: LaunchFlags, transport: str, environ: Changing) -> None:
    in_job = launcher_found(environ, transport)
    if in_job and "CUDA_VISIBLE_DEVICES" not in environ:
        source = "ompi" if is_reference(transport) else "any"
        environ["CUDA_VISIBLE_DEVICES"] = str(get_mpi_local_rank(source=source, environ=environ))
        environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    if not in_job or sync_training.inited or not flags.enable_sync_training:
        return
    chosen = asked_for(environ, transport)
    if is_reference(transport) and chosen.name == "torch":
        raise LaunchError(f"set {env.WITH_BYTEPS} or {env.WITH_HOROVOD} to 1.")
    chosen.init()
    sync_training.inited = True


def init_sync_train_and_update_conf(
    conf: SyncTrainConfig,
    *,
    transport: str = "auto",
    environ: Changing | None = None,
    address_of: Callable[[str], str] = bps.interface_address,
) -> None:
    """Starts the transport, once, and tells the config who this process is.

    BytePS if MONOLITH_WITH_BYTEPS is set, else Horovod if it is installed, else
    torch.distributed. `transport="reference"`: as Monolith, which leaves the config alone where a
    library is missing, and whose latch BytePS alone does not set.
    """
    environ = env.current() if environ is None else environ
    with_byteps = switched_on(env.WITH_BYTEPS, environ, transport)
    shared = with_byteps and _shared(environ)
    _log.info("entering synchronous training of job %r", conf.uuid)
    if not is_reference(transport):
        _tell(conf, _start(conf, with_byteps and not shared, with_byteps, environ, address_of))
        return
    try:
        chosen = _start_as_the_original(conf, with_byteps, shared, environ, address_of)
    except ImportError as error:
        _log.warning("synchronous training is not set up: %s", error)
        return
    _tell(conf, chosen)


def _shared(environ: Changing) -> bool:
    """Whether Horovod does a part of what BytePS could do."""
    names = ("MONOLITH_WITH_BYTEPS_BCAST", "MONOLITH_WITH_BYTEPS_ALLREDUCE")
    return any(env.whole(name, environ, default=1) == 0 for name in names)


def _start(
    conf: SyncTrainConfig,
    byteps_alone: bool,
    with_byteps: bool,
    environ: Changing,
    address_of: Callable[[str], str],
) -> Transport:
    """All libraries are looked for before the first one starts: a missing one leaves no half."""
    first = if_installed("byteps") if with_byteps else None
    if with_byteps and first is None:
        _log.warning("%s asks for BytePS, which is not installed", env.WITH_BYTEPS)
    chosen: Transport = (first if byteps_alone else if_installed("horovod")) or TorchTransport()
    if sync_training.inited:
        return chosen
    if first is not None:
        bps.bps_init(conf.uuid, environ=environ, address_of=address_of)
    if chosen is not first:
        chosen.init()
    sync_training.inited = True
    _own_folder(conf, chosen)
    return chosen


def _start_as_the_original(
    conf: SyncTrainConfig,
    with_byteps: bool,
    shared: bool,
    environ: Changing,
    address_of: Callable[[str], str],
) -> Transport:
    chosen = byteps() if with_byteps else horovod()
    if with_byteps:
        if not sync_training.inited:
            bps.bps_init(conf.uuid, transport="reference", environ=environ, address_of=address_of)
        if not shared:
            return chosen
        chosen = horovod()
    if not sync_training.inited:
        chosen.init()
        sync_training.inited = True
        _own_folder(conf, chosen)
    return chosen


def _own_folder(conf: SyncTrainConfig, chosen: Transport) -> None:
    if not conf.merge_sync_training_ckpt:
        conf.model_dir = os.path.join(conf.model_dir, conf.uuid, f"index-{chosen.rank():04d}")


def _tell(conf: SyncTrainConfig, chosen: Transport) -> None:
    _log.info(
        "synchronous training over %s: rank %d of %d", chosen.name, chosen.rank(), chosen.size()
    )
    conf.num_ps = 0
    conf.reorder_fids_in_data_pipeline = True
    conf.index = chosen.rank()
    conf.num_workers = chosen.size()
    conf.enable_variable_partition = False
