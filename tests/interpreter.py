"""Triton's interpreter as tests want it: prepared once instead of at every call, and locked."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from threading import RLock
from types import FunctionType
from typing import Any

_LAUNCHES = RLock()


def prepare() -> None:
    """Makes the interpreter quick and safe for threads, if it is in use in this process.

    It replaces the functions of Triton's language by its own at every call, also of a function of a
    kernel by another, which takes most of its time; here it does so once and for good. And what it
    keeps of a launch, like the number of the running program, it keeps once for all threads: so
    launches wait for one another.
    """
    if "hedgerow.kernels.toolchain" not in sys.modules:
        return
    from hedgerow.kernels import toolchain

    if not toolchain.interpreted():
        return
    from triton.runtime import interpreter

    if hasattr(interpreter.GridExecutor.__call__, "__wrapped__"):
        return
    whole = FunctionType(prepare.__code__, {"tl": interpreter.tl, "core": interpreter.tl.core})
    interpreter._patch_lang(whole)
    nothing = interpreter._LangPatchScope()
    interpreter._patch_lang = lambda function: nothing
    interpreter.GridExecutor.__call__ = _one_at_a_time(interpreter.GridExecutor.__call__)


def _one_at_a_time(launch: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(launch)
    def locked(*args: Any, **options: Any) -> Any:
        with _LAUNCHES:
            return launch(*args, **options)

    return locked
