"""One stage of a benchmark: our side, and every peer in turn beside it.

At no time do more than two processes hold the rows of a stage: ours and one peer.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hedgerow import native
from hedgerow.calibration.machine import free_bytes

from .cases import Case, Stage
from .contestants import Contestant, PeerError, PeerMissingError, PeerProcess, no_room, our_bytes
from .ours import Ours
from .peers.subject import Subject, measure, outcome, ready
from .peers.workfile import Work
from .rounds import Counter, Settings
from .work import WorkPlan, make_work

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


class StageRunner:
    """Runs stages one after the other; single-owner."""

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        counter: Counter,
        *,
        make: Callable[[WorkPlan, Path], Work] = make_work,
        ours: type[Subject] = Ours,
    ) -> None:
        self._settings, self._folder, self._counter = settings, folder, counter
        self._make, self._kind = make, ours
        self._works: dict[str, Work] = {}
        self.versions: dict[str, str] = {}

    def stage(self, stage: Stage) -> Iterator[dict[str, Any]]:
        """The results of all cases of a stage, peer by peer."""
        ours: Subject | None = None
        try:
            for name in stage.peers():
                contestant = self._settings.contestants[name]
                cases = [case for case in stage.cases if name in case.peers]
                needed = contestant.needed_bytes(stage) + (0 if ours else our_bytes(stage))
                why = contestant.missing() or no_room(needed, free_bytes())
                if why is not None:
                    yield from (self._result(stage, case, name, missing=why) for case in cases)
                else:
                    if ours is None:
                        ours = self._our_side(stage)
                    yield from self._against(stage, cases, ours, contestant)
                self._counter.finish(len(cases))
        finally:
            if ours is not None:
                ours.leave()

    def _our_side(self, stage: Stage) -> Subject:
        self._counter.say(f"making {stage.plan.name}")
        ours = self._kind(self._work(stage.plan), self._settings.threads, stage.optimizer)
        if stage.filled:
            ours.fill()
        return ours

    def _work(self, plan: WorkPlan) -> Work:
        if plan.name not in self._works:
            self._works[plan.name] = self._make(plan, self._folder / plan.name)
        return self._works[plan.name]

    def _against(
        self, stage: Stage, cases: list[Case], ours: Subject, contestant: Contestant
    ) -> Iterator[dict[str, Any]]:
        name, left = contestant.name, list(cases)
        self._counter.say(f"{stage.plan.name}: starting {name}")
        ours.reset()  # both sides take the same steps from the same rows
        try:
            with PeerProcess(contestant, self._folder, self._settings.patience) as peer:
                self._prepare(peer, stage, contestant)
                rounds, say = self._settings.rounds, self._counter.round
                duel = Duel(ours, peer, name, rounds, self._folder, say)
                while left:
                    measured = duel.fight(left[0])
                    yield self._result(stage, left.pop(0), name, **measured)
        except PeerMissingError as error:
            yield from (self._result(stage, case, name, missing=str(error)) for case in left)
        except PeerError as error:
            yield from (self._result(stage, case, name, error=str(error)) for case in left)

    def _prepare(self, peer: PeerProcess, stage: Stage, contestant: Contestant) -> None:
        answer = peer.ask(
            "prepare",
            work=str(self._work(stage.plan).folder),
            threads=contestant.threads or self._settings.threads,
            optimizer=stage.optimizer,
            filled=stage.filled,
        )
        self.versions.update(answer["versions"])

    @staticmethod
    def _result(stage: Stage, case: Case, peer: str, **measured: Any) -> dict[str, Any]:
        ids = stage.plan.rows if case.operation == "insert" else stage.plan.batch_ids
        size = {"rows": stage.plan.rows, "dim": stage.plan.dim, "ids": ids}
        return {**heading(case, peer), **size, **measured}


def run_stages(
    settings: Settings,
    stages: list[Stage],
    counter: Counter,
    *,
    make: Callable[[WorkPlan, Path], Work] = make_work,
    ours: type[Subject] = Ours,
) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Versions of what took part, and all results; threads are as before afterwards."""
    before = native.threads(), torch.get_num_threads()
    try:
        with tempfile.TemporaryDirectory(prefix="hedgerow-bench-") as folder:
            runner = StageRunner(settings, Path(folder), counter, make=make, ours=ours)
            results = [result for stage in stages for result in runner.stage(stage)]
    finally:
        native.set_threads(before[0])
        torch.set_num_threads(before[1])
    own = ours.versions()
    return {**own, **runner.versions, **own}, results  # ours first, and of our environment
