"""What a synchronous job is asked to do, and the part of its config that starting it changes."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.errors import InputError
from . import env
from .env import Environ

AUTO, REFERENCE = "auto", "reference"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFlags:
    """The flags of the original, as an argument.

    >>> LaunchFlags(enable_sync_training=True).num_ps
    0
    """

    enable_sync_training: bool = False
    enable_gpu_training: bool = False
    num_ps: int = 0
    gpu_placement_allowed: bool = False


@dataclass(slots=True, kw_only=True)
class SyncTrainConfig:
    """What `init_sync_train_and_update_conf` changes once the processes know each other.

    >>> SyncTrainConfig(uuid="job7", model_dir="/models").num_workers
    1
    """

    uuid: str = ""
    model_dir: str = ""
    merge_sync_training_ckpt: bool = False
    num_ps: int = 0
    reorder_fids_in_data_pipeline: bool = False
    index: int = 0
    num_workers: int = 1
    enable_variable_partition: bool = True


def is_reference(transport: str) -> bool:
    """Whether the original's rules are asked for, its defects included.

    >>> is_reference("auto"), is_reference("reference")
    (False, True)
    """
    if transport not in (AUTO, REFERENCE):
        raise InputError(f"transport is {transport!r}; it must be 'auto' or 'reference'.")
    return transport == REFERENCE


def switched_on(variable: str, environ: Environ, transport: str) -> bool:
    """Whether a variable is on: 1 or true; for Monolith, every number but 0.

    >>> switched_on("MONOLITH_WITH_BYTEPS", {"MONOLITH_WITH_BYTEPS": "2"}, "reference")
    True
    """
    if is_reference(transport):
        return env.whole(variable, environ, default=0) != 0
    return env.switch(variable, environ)
