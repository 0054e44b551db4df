"""A loaded model that publishers update: pushes of rows in sessions, and of dense weights."""

from __future__ import annotations

import dataclasses
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ..core.checks import unknown
from ..core.errors import ConfigError, InputError
from ..routing.router import Router
from ..sync.protocol import (
    ASSIGN,
    ATTACH,
    BEAT,
    DENSE,
    DESCRIBE,
    GONE,
    REMOVE,
    REPLICA_SERVICE,
    SWEEP,
    DensePush,
    PushMark,
    ServedModel,
    read_json,
    to_json,
)
from ..tables.host import HostTable
from ..tables.multi.host_tables import HostTables
from ..wire.predict import PlainRequest
from ..wire.rpc import Behaviour, Coded, service_handler
from .model import AnswerPlain, ServingError, Signature, Tensors
from .program import DenseProgram
from .request_context import current_push

if TYPE_CHECKING:
    from .registry import Registry


WAIT_S = 2.0  # how long a push waits for the push before it
SILENT_S = 10.0  # after this time without a call a publisher can be replaced by an older one


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """How fresh the rows of one trainer shard are in this replica.

    If `synced`, every change older than `age_s` seconds is in the replica. Before that, rows are
    those of the bundle and of the pushes so far. `seq` is the number of the last applied push.
    `rows` and `removed` count the rows that pushes assigned and removed.
    """

    shard: int
    shards: int
    publisher: str
    seq: int
    rows: int
    removed: int
    synced: bool
    age_s: float

    def to_dict(self) -> dict[str, Any]:
        """Returns a dict for JSON."""
        return asdict(self)


class PushSession:
    """A publisher's session for one trainer shard; `lock`, a condition, is held during a push.

    `generation` is the time stamp of every row that the session writes. Rows of the shard with a
    smaller time stamp were not sent in this session.
    """

    def __init__(
        self,
        token: str,
        publisher: str,
        place: tuple[int, int],
        generation: int,
        routers: Mapping[str, Router],
    ) -> None:
        self.token, self.publisher, self.generation = token, publisher, generation
        self.shard, self.shards = place
        self.lock = threading.Condition()
        self._routers = routers
        self._ended = False
        self._seq = self._rows = self._removed = 0
        self._made_s = self._heard_s = time.monotonic()
        self._fresh_s: float | None = None  # every change before this time is applied

    def router(self, table: str) -> Router:
        """Returns the router of a table."""
        return self._routers[table]

    def outranks(self, publisher: str) -> bool:
        """Returns whether the session keeps its shard when another publisher wants it.

        It does if its publisher started later, and has made a call within `SILENT_S`.
        """
        silent_s = time.monotonic() - self._heard_s
        return self.publisher > publisher and silent_s < SILENT_S

    def end(self) -> None:
        """Refuses all later pushes, and waits for the one in progress."""
        with self.lock:
            self._ended = True
            self.lock.notify_all()

    def check(self, token: str) -> None:
        """Raises unless a call belongs to this session. Call it with the lock held."""
        if self._ended or token != self.token:
            raise ServingError(GONE, f"shard {self.shard} has another session; attach again.")
        self._heard_s = time.monotonic()

    def begin(self, mark: PushMark) -> None:
        """Waits for a push's turn and records it as the last. Call it with the lock held."""
        self.await_turn(mark)
        self.let_in(mark)

    def await_turn(self, mark: PushMark) -> None:
        """Waits for a push's turn; raises if it cannot come. Call it with the lock held."""
        self.check(mark.session)
        in_turn = self.lock.wait_for(lambda: self._ended or self._seq >= mark.after, WAIT_S)
        self.check(mark.session)
        if not in_turn or mark.seq <= self._seq:
            raise ServingError(
                "OUT_OF_RANGE", f"push {mark.seq} of shard {self.shard} comes after {self._seq}."
            )

    def let_in(self, mark: PushMark) -> None:
        """Records a push as the last. The lock must be held since its turn came."""
        self._seq = mark.seq
        self.lock.notify_all()

    def done(self, rows: int, removed: int, lag_s: float | None) -> None:
        """Counts an applied push, or a beat, which changes no rows."""
        self._rows += rows
        self._removed += removed
        if lag_s is not None:
            self._fresh_s = time.monotonic() - max(0.0, lag_s)

    def status(self) -> ShardStatus:
        """Returns how fresh this shard's rows are."""
        since_s = self._made_s if self._fresh_s is None else self._fresh_s
        return ShardStatus(
            self.shard,
            self.shards,
            self.publisher,
            self._seq,
            self._rows,
            self._removed,
            self._fresh_s is not None,
            max(0.0, time.monotonic() - since_s),
        )


_LATER = "a publisher that was started later sends these rows; stop this one."
_SLICE_ROWS, _SLICES = 4096, 16  # of one sweep call: pushes of the shard wait for its end


class LiveModel:
    """The updates that publishers make to one loaded model. Owns a lock; a session has its own.

    Readers never wait for a publisher. Rows change one by one, weights all at once.
    """

    def __init__(
        self,
        store: HostTables | None,
        *,
        shard: int = 0,
        routers: Mapping[str, Router] | None = None,
        program: DenseProgram | None = None,
    ) -> None:
        self.incarnation = secrets.token_hex(8)
        self._store, self._program = store, program
        self._shard, self._routers = shard, dict(routers or {})
        self._lock = threading.Lock()
        self._attaching = threading.Lock()
        self._sessions: dict[int, PushSession] = {}
        self._generation = 0
        self._dense_from, self._dense_number = "", 0  # publisher and number of the weights

    # ---- status

    def describe(self, name: str, version: int) -> ServedModel:
        """Returns a description of the model for publishers."""
        store, routers = self._store, self._routers
        dims = {} if store is None else dict(zip(store.names, store.dims, strict=True))
        shards = max((router.shards for router in routers.values()), default=1)
        dense = self._program is not None
        return ServedModel(
            name, version, self.incarnation, dims, self._shard, shards, routers, dense
        )

    def rows(self) -> int:
        """Returns the number of rows of all tables."""
        return 0 if self._store is None else self._store.size()

    def shards(self) -> list[ShardStatus]:
        """Returns how fresh the rows of each trainer shard are."""
        with self._lock:
            sessions = sorted(self._sessions.items())
        return [session.status() for _, session in sessions]

    def dense_status(self) -> dict[str, Any]:
        """Returns number and age in seconds of the weights; number 0 means the bundle's."""
        age_s = None if self._program is None else self._program.age_s()
        return {"number": self._dense_number, "age_s": age_s}

    # ---- rows

    def guarded(self, signatures: Mapping[str, Signature]) -> dict[str, Signature]:
        """Returns the signatures, in which pushes with a mark go through their session."""
        found = dict(signatures)
        for key in (ASSIGN, REMOVE):
            run = found[key].run
            answer_plain = found[key].answer_plain
            found[key] = dataclasses.replace(
                found[key],
                run=self._guard(run, key == REMOVE),
                answer_plain=None if answer_plain is None else self._guard_plain(answer_plain),
            )
        return found

    def stamp(self) -> int:
        """Returns the time stamp for rows of the current push; 0 for a push without a session."""
        mark = current_push()
        return 0 if mark is None else self._session(mark.shard, mark.session).generation

    def _guard(
        self, run: Callable[[Tensors], Tensors], removes: bool
    ) -> Callable[[Tensors], Tensors]:
        def run_in_session(inputs: Tensors) -> Tensors:
            mark = current_push()
            if mark is None:
                return run(inputs)
            session = self._session(mark.shard, mark.session)
            with session.lock:
                session.begin(mark)
                outputs = run(inputs)
                count = sum(int(value) for value in outputs.values())
                session.done(0 if removes else count, count if removes else 0, None)
            return outputs

        return run_in_session

    def _guard_plain(self, answer: AnswerPlain) -> AnswerPlain:
        """Guards `answer_plain` as _guard() does `run`; leaves a None answer's push to `run`."""

        def answer_in_session(request: PlainRequest, tail: bytes) -> bytes | None:
            mark = current_push()
            if mark is None:
                return answer(request, tail)
            session = self._session(mark.shard, mark.session)
            with session.lock:
                session.await_turn(mark)
                answered: bytes | None = b""  # a push that raises counts as let in
                try:
                    answered = answer(request, tail)
                finally:
                    if answered is not None:
                        session.let_in(mark)
                if answered is not None:
                    session.done(self._rows_in(request), 0, None)
            return answered

        return answer_in_session

    def _rows_in(self, request: PlainRequest) -> int:
        names = () if self._store is None else self._store.names
        return sum((request.int64s(f"{name}_id") or (0, 0))[1] for name in names)

    def attach(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Starts a session of a trainer shard and ends the previous one; returns it as a dict.

        The publisher that started last takes precedence: an older one, whose trainer may have
        been replaced, is refused until the later one is silent.

        Sessions with another number of shards end too: their trainer is gone. The answer also has
        the number of rows of all shards in this replica.
        """
        try:
            shard, shards = int(asked["shard"]), int(asked["shards"])
            routers = {n: Router.from_dict(one) for n, one in asked["routers"].items()}
            publisher, incarnation = str(asked["publisher"]), str(asked["incarnation"])
        except (
            AttributeError,
            ConfigError,
            KeyError,
            OverflowError,
            TypeError,
            ValueError,
        ) as error:
            raise InputError(f"a publisher attaches with {asked!r}: {error}.") from error
        if not 0 <= shard < shards:
            raise InputError(f"a publisher attaches as shard {shard} of {shards}; count from 0.")
        if incarnation != self.incarnation:
            raise ServingError(GONE, "the model was loaded again; call Describe again.")
        names = () if self._store is None else self._store.names
        if sorted(routers) != sorted(names) or any(r.shards != shards for r in routers.values()):
            raise InputError(f"a publisher of {sorted(routers)} attaches to tables {list(names)}.")
        with self._attaching:
            with self._lock:
                before = [
                    one for n, one in self._sessions.items() if n == shard or one.shards != shards
                ]
            if any(one.outranks(publisher) for one in before):
                raise ServingError("FAILED_PRECONDITION", _LATER)
            for session in before:
                session.end()
            token = f"{self.incarnation}-{secrets.token_hex(4)}"
            with self._lock:
                for session in before:
                    self._sessions.pop(session.shard, None)
                self._generation += 1
                made = PushSession(token, publisher, (shard, shards), self._generation, routers)
                self._sessions[shard] = made
        return {"session": token, "rows": self.rows()}

    def sweep(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Removes a slice of the shard's rows that its session did not send."""
        session, table = self._session_of(asked), self._table(str(asked.get("table")))
        try:
            cursor = int(asked["cursor"])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"a sweep goes on at {asked.get('cursor')!r}; send a number.") from (
                error
            )
        removed, done = 0, False
        router = session.router(table.config.name)
        with session.lock:
            session.check(str(asked.get("session")))
            for _ in range(_SLICES):
                entries, cursor, done = table.scan_slice(cursor, _SLICE_ROWS)
                old = entries.ids[entries.ts < session.generation]
                old = old[router.owners(old) == session.shard]
                removed += int(table.erase(old).sum())
                if done:
                    break
            session.done(0, removed, None)
        return {"cursor": str(cursor), "done": done, "removed": removed}

    def beat(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Records that the shard has no new changes."""
        session, lag_s = self._session_of(asked), asked.get("lag_s", 0.0)
        if not isinstance(lag_s, int | float) or not math.isfinite(lag_s):
            raise InputError(f"lag_s is {lag_s!r}; it must be a number of seconds.")
        with session.lock:
            session.check(str(asked.get("session")))
            session.done(0, 0, float(lag_s))
        return {}

    def _session_of(self, asked: Mapping[str, Any]) -> PushSession:
        shard = asked.get("shard")
        return self._session(shard if isinstance(shard, int) else -1, str(asked.get("session")))

    def _session(self, shard: int, token: str) -> PushSession:
        with self._lock:
            found = self._sessions.get(shard)
        if found is None or found.token != token:
            raise ServingError(GONE, f"there is no such session of shard {shard}; attach again.")
        return found

    def _table(self, name: str) -> HostTable:
        names = () if self._store is None else self._store.names
        if self._store is None or name not in names:
            unknown("table", name, names)
        return self._store.table(names.index(name))

    # ---- weights

    def take_dense(self, push: DensePush) -> dict[str, Any]:
        """Replaces the weights; refuses those of a publisher that was replaced by a later one."""
        if push.incarnation != self.incarnation:
            raise ServingError(GONE, "the model was loaded again; call Describe again.")
        if self._program is None:
            raise InputError("this model has rows and no weights.")
        with self._attaching:
            if self._refuses_dense_of(push.publisher):
                raise ServingError(GONE, "a publisher that was started later sends the weights.")
            if push.publisher != self._dense_from:
                self._dense_from, self._dense_number = push.publisher, 0
            if push.state.number > self._dense_number:
                self._program.replace(push.state.weights)
                self._dense_number = push.state.number
        return {"number": self._dense_number}

    def _refuses_dense_of(self, publisher: str) -> bool:
        """Returns whether a later publisher owns the weights; with rows, only if it is active."""
        if self._store is None:
            return publisher < self._dense_from
        with self._lock:
            sessions = list(self._sessions.values())
        return any(
            one.publisher == self._dense_from and one.outranks(publisher) for one in sessions
        )


Answer = Callable[[bytes], dict[str, Any]]


class SyncService:
    """Answers publishers for the newest version of each model of a registry."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def answers(self) -> dict[str, Answer]:
        """Returns the function of each method, by name."""
        return {
            DESCRIBE: lambda _: {"models": [one["served"] for one in self._models()]},
            ATTACH: lambda data: self._ask(data, LiveModel.attach),
            SWEEP: lambda data: self._ask(data, LiveModel.sweep),
            BEAT: lambda data: self._ask(data, LiveModel.beat),
            DENSE: self._dense,
        }

    def status(self) -> dict[str, Any]:
        """Returns how fresh every model is, for JSON."""
        return {"models": [one["status"] for one in self._models()]}

    def _models(self) -> Iterator[dict[str, Any]]:
        for name in self._registry.names():
            try:
                with self._registry.find(name) as model:
                    followed = model.followed
                    if followed is None:
                        continue
                    served = followed.describe(name, model.version)
            except ServingError:  # no version of it answers now
                continue
            yield {
                "served": served.to_dict(),
                "status": {
                    "name": name,
                    "version": served.version,
                    "dense": followed.dense_status(),
                    "shards": [one.to_dict() for one in followed.shards()],
                },
            }

    @contextmanager
    def _followed(self, name: object) -> Iterator[LiveModel]:
        if not isinstance(name, str) or not name:
            raise InputError(f"model is {name!r}; name the model.")
        with self._registry.find(name) as model:
            if model.followed is None:
                raise InputError(f"model {name} takes no pushes in sessions.")
            yield model.followed

    def _ask(
        self, data: bytes, verb: Callable[[LiveModel, dict[str, Any]], dict[str, Any]]
    ) -> dict[str, Any]:
        self._registry.check_pushes()
        asked = read_json(data)
        with self._followed(asked.get("model")) as followed:
            return verb(followed, asked)

    def _dense(self, data: bytes) -> dict[str, Any]:
        self._registry.check_pushes()
        push = DensePush.from_bytes(data)
        with self._followed(push.model) as followed:
            return followed.take_dense(push)


def sync_handler(registry: Registry, coded: Coded) -> Any:
    """Returns a grpcio handler; `coded` returns the code and the text of an error."""
    answers = SyncService(registry).answers()
    return service_handler(
        REPLICA_SERVICE, {name: _behaviour(answer) for name, answer in answers.items()}, coded
    )


def _behaviour(answer: Answer) -> Behaviour:
    return lambda data, _: to_json(answer(data))
