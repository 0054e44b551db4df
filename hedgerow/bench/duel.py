"""Our table against one peer: rounds taken in turns, then a look at both results."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .cases import Case
from .peer_process import PeerProcess
from .peers.subject import Subject, measure, outcome, ready

_CALLS = 5  # of a round at least, where a call is short
_SETTLE_S = 0.02  # threads that just worked spin for a while before they sleep
# Of updated rows: sums of equal ids' gradients differ by the order of their terms.
_RELATIVE, _ABSOLUTE = 1e-4, 1e-5


@dataclass(frozen=True, slots=True)
class Duel:
    """One peer that stands ready beside ours."""

    ours: Subject
    peer: PeerProcess
    peer_name: str
    rounds: int
    folder: Path  # for results on their way to the comparison
    on_round: Callable[[str], None]

    def fight(self, case: Case) -> dict[str, Any]:
        """The result of one case."""
        ready(self.ours, case.operation, case.access)
        self._ask("place", case)
        self._round(case, ours_first=True)  # memory is touched, slots made, threads started
        times = [self._round(case, ours_first=number % 2 == 0) for number in range(self.rounds)]
        ours_ms, peer_ms = (statistics.median(side) for side in zip(*times, strict=True))
        ratios = sorted(peer / ours for ours, peer in times)
        return {
            "ours_ms": round(ours_ms, 4),
            "peer_ms": round(peer_ms, 4),
            "ratio": round(peer_ms / ours_ms, 3),
            "ratio_range": [round(ratios[0], 3), round(ratios[-1], 3)],
            **self._comparison(case),
        }

    def _round(self, case: Case, *, ours_first: bool) -> tuple[float, float]:
        if ours_first:
            ours_ms = self._our_round(case)
            peer_ms = self._peer_round(case)
        else:
            peer_ms = self._peer_round(case)
            ours_ms = self._our_round(case)
        self.on_round(f"{case.name} ({case.output}), {self.peer_name}")
        return ours_ms, peer_ms

    def _our_round(self, case: Case) -> float:
        time.sleep(_SETTLE_S)
        return measure(self.ours, case.operation, case.access, case.output, _CALLS)

    def _peer_round(self, case: Case) -> float:
        time.sleep(_SETTLE_S)
        return float(self._ask("measure", case, calls=_CALLS)["ms"])

    def _ask(self, do: str, case: Case, **more: Any) -> dict[str, Any]:
        return self.peer.ask(
            do, operation=case.operation, access=case.access, output=case.output, **more
        )

    def _comparison(self, case: Case) -> dict[str, Any]:
        path = self.folder / "outcome.npy"
        self._ask("outcome", case, to=str(path))
        theirs = np.load(path)
        ours = outcome(self.ours, case.operation, case.access, case.output)
        if case.operation in ("update", "train"):
            return _close(ours, theirs)
        return {"equal": ours.shape == theirs.shape and ours.tobytes() == theirs.tobytes()}


def heading(case: Case, peer: str) -> dict[str, Any]:
    """What every result of a case begins with."""
    output = {} if case.operation in ("insert", "train") else {"output": case.output}
    return {"case": case.name, **output, "peer": peer}


def _close(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> dict[str, Any]:
    equal = ours.shape == theirs.shape and np.allclose(theirs, ours, rtol=_RELATIVE, atol=_ABSOLUTE)
    return {"equal": bool(equal), "tolerance": {"relative": _RELATIVE, "absolute": _ABSOLUTE}}
