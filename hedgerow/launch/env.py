"""The environment as typed values. Only this file reads it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import TypeVar

from ..core.errors import ConfigError, VariableMissingError

Environ = Mapping[str, str]
T = TypeVar("T")

WITH_BYTEPS, WITH_HOROVOD = "MONOLITH_WITH_BYTEPS", "MONOLITH_WITH_HOROVOD"
_SWITCH = {"0": False, "false": False, "1": True, "true": True}


def current() -> MutableMapping[str, str]:
    """Returns the environment of this process, to read and to change.

    >>> "PATH" in current()
    True
    """
    return os.environ


def whole(name: str, environ: Environ, default: int | None = None) -> int:
    """Returns the whole number in a variable, parsed by `int()`.

    >>> whole("RANK", {"RANK": " 12 "}), whole("RANK", {}, default=0)
    (12, 0)
    """
    if name not in environ:
        if default is None:
            raise VariableMissingError(
                f"{name} is not set; start the job with torchrun, mpirun or srun, or set it."
            )
        return default
    try:
        return int(environ[name])
    except ValueError:
        raise ConfigError(
            f"{name} is {environ[name]!r}; it must be a whole number: set it, or unset it."
        ) from None


def switch(name: str, environ: Environ, default: bool = False) -> bool:
    """Returns the value of a variable that is 0, 1, true or false.

    >>> switch("MONOLITH_WITH_BYTEPS", {"MONOLITH_WITH_BYTEPS": "True"})
    True
    """
    text = environ.get(name, "").strip().lower()
    if not text:
        return default
    if text not in _SWITCH:
        raise ConfigError(f"{name} is {environ[name]!r}; it must be 0, 1, true or false.")
    return _SWITCH[text]


def choose(
    name: str,
    *,
    default: T,
    argument: T | None = None,
    flag: T | None = None,
    config: Mapping[str, T] | None = None,
    variable: str = "",
    environ: Environ | None = None,
    parse: Callable[[str], T] | None = None,
) -> T:
    """Returns a setting: the first given of argument, flag, config, environment variable, default.

    >>> choose("backend", default="gloo", config={"backend": "nccl"})
    'nccl'
    >>> choose("timeout_s", default=300, variable="HEDGEROW_TIMEOUT_S",
    ...        environ={"HEDGEROW_TIMEOUT_S": "20"}, parse=int)
    20
    """
    for given in (argument, flag, (config or {}).get(name)):
        if given is not None:
            return given
    text = (current() if environ is None else environ).get(variable) if variable else None
    if text is None:
        return default
    try:
        return parse(text) if parse else text  # pyright: ignore[reportReturnType]
    except ValueError:
        raise ConfigError(f"{variable} is {text!r}; it must be a number for {name}.") from None


def set_absent(values: Mapping[str, str], environ: MutableMapping[str, str]) -> None:
    """Sets the variables that are not set yet; others stay.

    >>> there = {"RANK": "1"}
    >>> set_absent({"RANK": "0", "WORLD_SIZE": "2"}, there)
    >>> there
    {'RANK': '1', 'WORLD_SIZE': '2'}
    """
    for name, value in values.items():
        environ.setdefault(name, value)


def present(names: Iterable[str], environ: Environ) -> list[str]:
    """Returns the names that are set, even to empty text.

    >>> present(("RANK", "WORLD_SIZE"), {"RANK": ""})
    ['RANK']
    """
    return [name for name in names if name in environ]


@dataclass
class SyncTraining:
    """Whether this process has initialised synchronous training."""

    inited: bool = False


# The only exception to "no module-level state": in Monolith it is a module variable.
sync_training = SyncTraining()
