"""The peers of a benchmark: what each needs, and its process, which is asked line by line."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from hedgerow.core.errors import HedgerowError
from hedgerow.core.units import format_bytes

from . import CHECKOUT
from .cases import Stage

_BENCH = Path(__file__).parent
_FIX = "make bench-peers"
_LIBRARIES_BYTES = 500_000_000  # of a process before it has any row
_RESERVE_BYTES = 500_000_000  # left to everyone else on the machine
_OUR_ROWS_FACTOR, _OUR_ROW_BYTES = 1.05, 50  # rows with padding; index, time, room to grow


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A peer that can be started as a process."""

    name: str
    module: str
    subject: str = ""  # the class that is measured, where the module has several
    path: Path = _BENCH  # the folder that holds the module
    home: str | None = None  # environment below .peers; None: this interpreter
    threads: int | None = None  # None: as many as we
    rows_factor: float = 1.0  # memory over that of the bare rows
    row_bytes: int = 0  # and beside it

    def interpreter(self) -> Path | None:
        """The Python that runs it, if its environment is there."""
        if self.home is None:
            return Path(sys.executable)
        for parent in (Path.cwd(), CHECKOUT):
            python = parent / ".peers" / self.home / "bin" / "python"
            if python.exists():
                return python
        return None

    def missing(self) -> str | None:
        """Why it cannot start, and the fix; None if it can."""
        if self.interpreter() is not None:
            return None
        return f"no environment .peers/{self.home} here or in the repository; build it: {_FIX}"

    def needed_bytes(self, stage: Stage) -> int:
        """About how much memory it takes for a stage."""
        return _LIBRARIES_BYTES + needed_bytes(stage, self.rows_factor, self.row_bytes)


def needed_bytes(stage: Stage, rows_factor: float, row_bytes: int) -> int:
    """Rows, their optimizer state, and what lies beside them."""
    states = stage.plan.dim if stage.optimizer == "adagrad" else 0
    return int(stage.plan.rows * (4 * stage.plan.dim * rows_factor + 4 * states + row_bytes))


def our_bytes(stage: Stage) -> int:
    """About what our own table takes in a stage."""
    return needed_bytes(stage, _OUR_ROWS_FACTOR, _OUR_ROW_BYTES)


def table_bytes(rows: int, dim: int) -> int:
    """About what a table of ours without optimizer state takes.

    >>> table_bytes(1000, 16)
    117200
    """
    return int(rows * (4 * dim * _OUR_ROWS_FACTOR + _OUR_ROW_BYTES))


def no_room(needed: int, free: int | None) -> str | None:
    """Why so much memory cannot be had; None if it can."""
    if free is None or needed + _RESERVE_BYTES <= free:
        return None
    return f"needs about {format_bytes(needed)} of memory, and {format_bytes(free)} are free"


CONTESTANTS = {
    peer.name: peer
    for peer in (
        Contestant(name="torch.index_select", module="peers.torch_tables", subject="IndexSelect"),
        Contestant(name="nn.Embedding", module="peers.torch_tables", subject="Embedding"),
        Contestant(
            name="nn.Embedding(sparse)", module="peers.torch_tables", subject="SparseEmbedding"
        ),
        Contestant(
            name="dict + tensor", module="peers.torch_tables", subject="Dictionary", row_bytes=250
        ),
        Contestant(
            name="TBE", module="peers.torchrec_tables", subject="TableBatched", home="torch"
        ),
        Contestant(
            name="EBC", module="peers.torchrec_tables", subject="BagCollection", home="torch"
        ),
        Contestant(
            name="managed collision",
            module="peers.torchrec_tables",
            subject="ManagedCollision",
            home="torch",
            row_bytes=100,
        ),
        Contestant(name="nn.EmbeddingBag(sparse)", module="peers.training"),
        Contestant(
            name="EBC sparse",
            module="peers.torchrec_training",
            subject="SparseCollection",
            home="torch",
        ),
        Contestant(
            name="EBC fused",
            module="peers.torchrec_training",
            subject="FusedCollection",
            home="torch",
        ),
        Contestant(
            name="EBC row-wise",
            module="peers.torchrec_training",
            subject="RowwiseCollection",
            home="torch",
        ),
        Contestant(name="torch all-to-all", module="peers.two_ranks", subject="TorchExchange"),
        Contestant(
            name="torch all-to-all, unique", module="peers.two_ranks", subject="TorchExchangeUnique"
        ),
        *(
            Contestant(
                name=name,
                module=f"benchmarks.ps_peers.{module}",
                subject=subject,
                path=CHECKOUT,
            )
            for name, module, subject in (
                ("grpcio stream", "grpc_calls", "GrpcStream"),
                ("grpcio unary", "grpc_calls", "GrpcUnary"),
                ("torch.rpc", "torch_rpc", "TorchRpc"),
                ("Ray actors", "ray_actors", "RayActors"),
                ("plain sockets", "sockets", "PlainSockets"),
                ("with CURVE", "ours", "OurServersCurve"),
                ("with the log", "ours", "OurServersLog"),
            )
        ),
        # Its tables have a power of two of slots.
        Contestant(name="TFRA", module="peers.tfra", home="tfra", rows_factor=2.2),
        Contestant(name="gather", module="benchmarks.gather", path=CHECKOUT),
        Contestant(
            name="one thread",
            module="benchmarks.ours",
            path=CHECKOUT,
            threads=1,
            rows_factor=_OUR_ROWS_FACTOR,
            row_bytes=_OUR_ROW_BYTES,
        ),
    )
}


# The folder goes last, so that no file of ours can stand in for a library of that environment.
# Answers get a descriptor of their own before any library is imported: libraries print at will.
_START = (
    "import os, runpy, sys; sys.path.append(sys.argv[1]); "
    "sys.argv.append(str(os.dup(1))); os.dup2(2, 1); "
    "runpy.run_module(sys.argv[2], run_name='__main__')"
)
_LEAVE_S = 10
_LAST_WORDS = 4  # lines of stderr in an error


class PeerError(HedgerowError, RuntimeError):
    """A peer crashed, hung or answered what nobody can read."""


class PeerMissingError(PeerError):
    """A peer's library is not in its environment."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds until a silent peer is given up."""

    prepare_s: float = 900.0
    answer_s: float = 600.0


class PeerProcess:
    """One running peer; single-owner. Leaving its `with` block ends the process."""

    def __init__(self, contestant: Contestant, folder: Path, patience: Patience) -> None:
        self._name, self._patience = contestant.name, patience
        python = contestant.interpreter()
        if python is None:
            raise PeerMissingError(contestant.missing() or "")
        asked = [contestant.module, *filter(None, [contestant.subject])]
        command = [python, "-P", "-c", _START, contestant.path, *asked]
        self._complaints = folder / f"{contestant.module}.stderr"
        with self._complaints.open("w") as stderr:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                errors="replace",
            )
        self._answers: queue.Queue[str | None] = queue.Queue()
        # A thread, since a read from a pipe cannot be given up.
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> PeerProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _close(self._process.stdin)  # then it ends by itself, and first what it has started
        try:
            self._process.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # it has nothing to save
            self._process.wait()
        self._reader.join(timeout=5)  # a grandchild may hold the pipe
        _close(self._process.stdout)

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Sends one request and waits for its answer."""
        wait_s = self._patience.prepare_s if do == "prepare" else self._patience.answer_s
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            stdin.flush()
            line = self._answers.get(timeout=wait_s)
        except queue.Empty:
            raise PeerError(
                f"no answer to {do!r} within {wait_s:g} s.{self._last_words()}"
            ) from None
        except BrokenPipeError:
            line = None
        if line is None:
            status = self._process.wait()
            raise PeerError(f"ended with status {status} at {do!r}.{self._last_words()}")
        return self._parsed(do, line)

    def _parsed(self, do: str, line: str) -> dict[str, Any]:
        try:
            answer = json.loads(line)
        except ValueError:
            raise PeerError(f"answered {line!r} to {do!r}.{self._last_words()}") from None
        if not isinstance(answer, dict):
            raise PeerError(f"answered {line!r} to {do!r}.{self._last_words()}")
        if "missing" in answer:
            raise PeerMissingError(answer["missing"])
        return answer

    def _read(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        for line in stdout:
            self._answers.put(line)
        self._answers.put(None)

    def _last_words(self) -> str:
        lines = self._complaints.read_text(errors="replace").splitlines()
        said = [line.strip() for line in lines if line.strip()][-_LAST_WORDS:]
        return f" Its last words: {' | '.join(said)}" if said else ""


def _close(stream: IO[str] | None) -> None:
    """Closes a pipe whose other end may be gone."""
    if stream is None:
        return
    try:
        stream.close()
    except BrokenPipeError:
        return  # what was not yet sent can no longer arrive
