"""Who follows the changed keys of a server's tables, so that none of them is given twice or lost.

A consumer is known by its name and a number that its client drew when it opened it: its life. Takes
are numbered. What a take gave is kept until the next one is asked for, so a request that comes
again gets the same answer, and one that comes late takes nothing. A take gives at most as many keys
as its client has room for, and the next ones the rest.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..core import checks
from ..core.errors import InputError
from ..core.shapes import Int64
from ..tables.host import HostTable
from ..tables.touched import Touched, TouchedKeys, TouchedSettings
from .buffers import buffer_of, tensor_over, value_of
from .errors import ConsumerGoneError, FrameError
from .frames import Answer, Request, Verb

FOLLOWING = (Verb.TOUCHED_OPEN, Verb.TOUCHED_TAKE, Verb.TOUCHED_BACK, Verb.TOUCHED_CLOSE)
MAX_CONSUMERS = 16  # of one table; beyond, the one that was silent longest must begin anew
MAX_CAPACITY = 2**26  # keys: about a gigabyte
MAX_NAME_BYTES = 256
_PREFIX = "remote "  # apart from consumers that the server has itself


@dataclass(slots=True)
class _Follower:
    life: int
    keys: TouchedKeys
    number: int = 0  # of the last take
    given: Answer | None = None  # by it
    rest: Int64[Tensor, "n"] | None = None  # taken, and not given yet
    lock: threading.Lock = field(default_factory=threading.Lock)


class Followers:
    """The consumers of all tables of a server; owns a lock, and one for each consumer."""

    def __init__(self) -> None:
        self.began_with_rows = False  # of this server: a checkpoint or a log gave it some
        self._start = secrets.randbits(31)
        self._lock = threading.Lock()
        self._known: dict[str, OrderedDict[str, _Follower]] = {}  # by table, then by consumer

    def answer(self, table: HostTable, request: Request) -> Answer:
        """Does what a request asks for, which may have come before."""
        order = _order(request)
        name, life = _name(order), checks.count("life", order.get("life", 0), least=1)
        if request.verb == Verb.TOUCHED_OPEN:
            self._open(table, name, life, _settings(order))
            return Answer(request.verb, numbers=(self._start, int(self.began_with_rows), 0))
        if request.verb == Verb.TOUCHED_CLOSE:
            self._close(table, name, life)
        elif request.verb == Verb.TOUCHED_TAKE:
            number = checks.count("number", order.get("number", 0), least=1)
            most = checks.count("most", order.get("most", 0), least=1)
            return self._take(self._find(table, name, life), number, most)
        else:
            self._give_back(self._find(table, name, life), _taken(request, order))
        return Answer(request.verb)

    def _open(self, table: HostTable, name: str, life: int, settings: TouchedSettings) -> None:
        with self._lock:
            known = self._known.setdefault(table.config.name, OrderedDict())
            old = known.get(name)
            if old is not None and old.life == life:
                return  # it came twice
            if old is not None:
                known.pop(name).keys.close()
            elif len(known) >= MAX_CONSUMERS:
                known.popitem(last=False)[1].keys.close()
            keys = table.touched(
                _PREFIX + name,
                capacity=settings.capacity,
                all_changes=settings.all_changes,
                overflow=settings.overflow,
            )
            known[name] = _Follower(life, keys)

    def _close(self, table: HostTable, name: str, life: int) -> None:
        with self._lock:
            known = self._known.get(table.config.name, OrderedDict())
            if name in known and known[name].life == life:
                known.pop(name).keys.close()

    def _find(self, table: HostTable, name: str, life: int) -> _Follower:
        with self._lock:
            known = self._known.get(table.config.name, OrderedDict())
            found = known.get(name)
            if found is None or found.life != life:
                raise ConsumerGoneError(
                    f"consumer {name!r} of table {table.config.name!r} is not open here: the "
                    f"server was restarted, or others took its place; open it again and send every "
                    f"row."
                )
            known.move_to_end(name)
            return found

    def _take(self, follower: _Follower, number: int, most: int) -> Answer:
        with follower.lock:
            if number == follower.number and follower.given is not None:
                return follower.given
            if number != follower.number + 1:
                raise InputError(
                    f"take {number} after take {follower.number}; takes are counted one by one."
                )
            whole, forgotten = False, 0
            if follower.rest is None:
                taken = follower.keys.take()
                follower.rest = taken.ids
                whole, forgotten = taken.whole_table, taken.forgotten
            part, rest = follower.rest[:most], follower.rest[most:]
            numbers = (int(whole), forgotten, int(len(rest) > 0))
            follower.given = Answer(Verb.TOUCHED_TAKE, numbers=numbers, frames=[buffer_of(part)])
            follower.rest = rest if len(rest) else None
            follower.number = number
            return follower.given

    def _give_back(self, follower: _Follower, taken: Touched) -> None:
        with follower.lock:
            follower.keys.give_back(taken)


def _order(request: Request) -> dict[str, Any]:
    if not request.frames:
        raise FrameError(f"{request.verb.name.lower()} without saying who follows.")
    order = value_of(request.frames[0])
    if not isinstance(order, dict):
        raise FrameError(f"{request.verb.name.lower()} with a {type(order).__name__}, no object.")
    return order


def _name(order: dict[str, Any]) -> str:
    name = order.get("consumer")
    if not isinstance(name, str) or not name or len(name.encode()) > MAX_NAME_BYTES:
        raise InputError(
            f"consumer is {str(name)[:64]!r}; it must be a non-empty str of at most "
            f"{MAX_NAME_BYTES} bytes."
        )
    return name


def _settings(order: dict[str, Any]) -> TouchedSettings:
    if checks.count("capacity", order.get("capacity", 0), least=1) > MAX_CAPACITY:
        raise InputError(f"capacity is {order['capacity']}; a server keeps up to {MAX_CAPACITY}.")
    return TouchedSettings(
        order["capacity"], order.get("all_changes", False), order.get("overflow", "whole_table")
    )


def _taken(request: Request, order: dict[str, Any]) -> Touched:
    if len(request.frames) != 2:
        raise FrameError(f"keys given back in {len(request.frames)} buffers; there are two.")
    count = memoryview(request.frames[1]).nbytes // 8
    ids = tensor_over(request.frames[1], torch.int64, count, "ids")
    whole = checks.flag("whole_table", order.get("whole_table", False))
    return Touched(ids, whole_table=whole, forgotten=0)
