"""Runs a script in several processes of this machine, by torchrun."""

from __future__ import annotations

import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from ..core.errors import ConfigError, FileMissingError, InputError
from . import env

_SETTINGS = {"nproc": int, "backend": str, "timeout_s": (int, float)}
_SIGNALLED = 128  # plus the signal's number, as shells do


def read_config(path: Path) -> dict[str, Any]:
    """Returns the table `[launch]` of a TOML file: nproc, backend, timeout_s."""
    if not path.exists():
        raise FileMissingError(f"no config file {path}; check --config.")
    try:
        found = tomllib.loads(path.read_text()).get("launch", {})
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}.") from error
    for name, value in found.items():
        if name not in _SETTINGS:
            known = ", ".join(_SETTINGS)
            raise ConfigError(f"{path}: [launch] has {name!r}; it may have {known}.")
        if not isinstance(value, _SETTINGS[name]) or isinstance(value, bool):
            raise ConfigError(f"{path}: launch.{name} is {value!r}, which is of another type.")
    return found


def processes(
    flag: int | None, config: Mapping[str, Any], environ: env.Environ | None = None
) -> int:
    """Returns the number of processes: the flag, the config file, HEDGEROW_NPROC, or 1.

    >>> processes(None, {"nproc": 4}, {"HEDGEROW_NPROC": "2"})
    4
    """
    count = env.choose(
        "nproc",
        flag=flag,
        config=config,
        variable="HEDGEROW_NPROC",
        environ=environ,
        parse=int,
        default=1,
    )
    if count < 1:
        raise InputError(f"nproc is {count}; it must be at least 1.")
    return count


def command(nproc: int, target: Sequence[str], *, module: bool = False) -> list[str]:
    """Returns torchrun's command line for one machine; torchrun finds a free port itself.

    >>> command(2, ["train.py", "--epochs", "3"])[1:]
    ['-m', 'torch.distributed.run', '--standalone', '--nproc-per-node', '2', '--', \
'train.py', '--epochs', '3']
    """
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    how = ["--nproc-per-node", str(nproc), *(["-m"] if module else [])]
    return [*run, *how, "--", *target]  # else torchrun takes the script's --nproc for its own


def run_script(
    nproc: int, target: Sequence[str], config: Mapping[str, Any], *, module: bool = False
) -> int:
    """Runs a script to its end; returns the job's status, which is 0 if no process failed.

    Settings of the config file are passed in environment variables: they override the caller's
    variables, and arguments in the script override them. Ctrl-C and SIGTERM are passed on once:
    processes then have 30 seconds, torchrun's limit, to save.
    """
    environ = dict(env.current())
    for name, variable in (("backend", "EMB_DIST_BACKEND"), ("timeout_s", "HEDGEROW_TIMEOUT_S")):
        if name in config:
            environ[variable] = str(config[name])
    environ.setdefault("OMP_NUM_THREADS", "1")  # torchrun would set it too, and warn
    # A process group of its own: else a terminal's Ctrl-C would reach torchrun a second time.
    started = command(nproc, target, module=module)
    with subprocess.Popen(started, env=environ, process_group=0) as job, _passed_on(job):
        status = job.wait()
    return status if status >= 0 else _SIGNALLED - status


@contextmanager
def _passed_on(job: subprocess.Popen[bytes]) -> Iterator[None]:
    """Passes on the first signal to the job; torchrun kills what still runs 30 seconds later.

    A second signal would end torchrun's wait and leave processes running.
    """
    sent: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        if not sent and job.returncode is None:
            job.send_signal(number)
        sent.append(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
