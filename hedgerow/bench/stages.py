"""One stage of a benchmark: our side, and every peer in turn beside it.

At no time do more than two processes hold the rows of a stage: ours and one peer.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from .. import native
from .cases import Case, Stage
from .contestants import Contestant, no_room, our_bytes
from .duel import Duel, heading
from .ours import Ours
from .peer_process import PeerError, PeerMissingError, PeerProcess
from .peers.subject import Subject
from .peers.workfile import Work
from .progress import Counter
from .room import free_bytes
from .settings import Settings
from .work import WorkPlan, make_work


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
