"""Triton's interpreter as tests want it: less work at every operation, and one launch at a time."""

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

    What it keeps of a launch, like the number of the running program, it keeps once for all
    threads: so launches wait for one another. And most of its time goes into what need not be done
    at every call: replacing the functions of Triton's language by its own, tables of dtypes, the
    types of tuples that nobody asks for.
    """
    if "hedgerow.kernels.toolchain" not in sys.modules:
        return
    from hedgerow.kernels import toolchain

    if not toolchain.interpreted():
        return
    from triton.runtime import interpreter

    launch = interpreter.GridExecutor.__call__
    if hasattr(launch, "__wrapped__"):
        return
    interpreter.GridExecutor.__call__ = _one_at_a_time(launch)
    # Before its first launch a kernel's source is rewritten, by one object for all threads.
    interpreter.InterpretedFunction.rewrite = _one_at_a_time(
        interpreter.InterpretedFunction.rewrite
    )
    tl = interpreter.tl
    interpreter._patch_lang(FunctionType(prepare.__code__, {"tl": tl, "core": tl.core}))
    nothing = interpreter._LangPatchScope()
    interpreter._patch_lang = lambda function: nothing
    interpreter._get_np_dtype = _by_name(interpreter._get_np_dtype)
    tl.core._type_for_tuple_values = _type_when_asked_for(tl.core)


def _one_at_a_time(launch: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(launch)
    def locked(*args: Any, **options: Any) -> Any:
        with _LAUNCHES:
            return launch(*args, **options)

    return locked


def _by_name(dtype_of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    known: dict[str, Any] = {}

    def found(dtype: Any) -> Any:
        name = dtype.scalar.name
        if name not in known:
            known[name] = dtype_of(dtype.scalar)
        return known[name]

    return found


def _type_when_asked_for(core: Any) -> Callable[..., Any]:
    type_of: Callable[..., Any] = core._type_for_tuple_values

    class Later(core.tuple_type):
        def __init__(self, values: list[Any], fields: Any = None) -> None:
            self._made_of = [*values], fields

        def __getattr__(self, name: str) -> Any:
            if name not in ("types", "fields", "name"):
                raise AttributeError(name)
            self.__dict__.update(vars(type_of(*self._made_of)))
            return self.__dict__[name]

    return Later
