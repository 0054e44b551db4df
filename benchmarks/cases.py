"""What is measured: the works, the cases on each, and the peers of each case."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from hedgerow.core import checks
from hedgerow.core.errors import InputError

from .work import WorkPlan

# Cases of our table alone; see `rounds.py`.
MEMORY, INSERT_CALLS = "memory", "insert calls"
GROWTH = "growth"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One operation on one access pattern, and who else does it."""

    name: str
    operation: str  # lookup, update, insert or train
    access: str
    output: str  # fresh or reused
    peers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Cases that share one table."""

    plan: WorkPlan
    optimizer: str | None  # sgd, adagrad, or none where rows do not learn
    cases: tuple[Case, ...]

    @property
    def filled(self) -> bool:
        """Whether the table starts with all rows."""
        return any(case.operation != "insert" for case in self.cases)

    def peers(self) -> list[str]:
        """Everyone who takes part."""
        return list(dict.fromkeys(peer for case in self.cases for peer in case.peers))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How large the works are."""

    w1_rows: int
    w2_rows: int
    batch_ids: int
    batches: int
    growth_rows: tuple[int, ...]

    def memory_rows(self) -> tuple[int, int]:
        """Sizes at which bytes a row are counted."""
        return self.w1_rows, self.w2_rows


FULL = Sizes(
    w1_rows=1_000_000,
    w2_rows=10_000_000,
    batch_ids=65_536,
    batches=32,  # 2 million uniform rows of 256 bytes: more than any cache holds
    growth_rows=(100_000, 1_000_000, 5_000_000, 20_000_000),
)
QUICK = Sizes(
    w1_rows=20_000,
    w2_rows=50_000,
    batch_ids=4_096,
    batches=4,
    growth_rows=(1_000, 5_000, 20_000, 50_000),
)

_FRESH = ("nn.Embedding", "TBE", "EBC", "managed collision", "TFRA", "dict + tensor")
_REUSED = ("torch.index_select", "gather")
_TRAINED = ("nn.Embedding(sparse)", "TBE", "TFRA")


def all_stages(sizes: Sizes) -> list[Stage]:
    """Everything that is compared, small works first."""
    w1 = WorkPlan(
        name="W1",
        rows=sizes.w1_rows,
        dim=16,
        accesses=("halves", "inserts"),
        batch_ids=sizes.w1_rows,
        random_ids=False,
        call_ids=sizes.batch_ids,
    )
    w2 = WorkPlan(
        name="W2",
        rows=sizes.w2_rows,
        dim=64,
        accesses=("zipf", "uniform"),
        batch_ids=sizes.batch_ids,
        batches=sizes.batches,
        call_ids=sizes.batch_ids,
    )
    w1_insert = _cases("W1 growing insert", "insert", "inserts", ("dict + tensor", "TFRA"))
    return [
        Stage(plan=w1, optimizer=None, cases=_lookups("W1 lookup", "halves")),
        Stage(plan=w1, optimizer="sgd", cases=_updates("W1 lookup+SGD", "halves")),
        Stage(plan=w1, optimizer=None, cases=w1_insert),
        Stage(
            plan=w2,
            optimizer=None,
            cases=_lookups("W2 lookup zipf", "zipf") + _lookups("W2 lookup uniform", "uniform"),
        ),
        Stage(
            plan=w2,
            optimizer="adagrad",
            cases=_updates("W2 lookup+Adagrad zipf", "zipf")
            + _updates("W2 lookup+Adagrad uniform", "uniform"),
        ),
        *(_growth(rows, sizes) for rows in sizes.growth_rows),
    ]


def _lookups(name: str, access: str) -> tuple[Case, ...]:
    reused = Case(name=name, operation="lookup", access=access, output="reused", peers=_REUSED)
    return (replace(reused, output="fresh", peers=_FRESH), reused, _threads(reused))


def _updates(name: str, access: str) -> tuple[Case, ...]:
    return _cases(name, "update", access, _TRAINED)


def _cases(name: str, operation: str, access: str, peers: tuple[str, ...]) -> tuple[Case, ...]:
    fresh = Case(name=name, operation=operation, access=access, output="fresh", peers=peers)
    return fresh, _threads(replace(fresh, output="reused"))


def _threads(case: Case) -> Case:
    """The same case against our own table with one thread."""
    return replace(case, name=f"threads {case.name}", peers=("one thread",))


def _growth(rows: int, sizes: Sizes) -> Stage:
    plan = WorkPlan(
        name=f"{GROWTH} {rows}",
        rows=rows,
        dim=16,
        accesses=("uniform",),
        batch_ids=sizes.batch_ids,
        batches=sizes.batches,
        call_ids=sizes.batch_ids,
    )
    case = Case(
        name=GROWTH, operation="lookup", access="uniform", output="reused", peers=("gather",)
    )
    return Stage(plan=plan, optimizer=None, cases=(case,))


def choose(
    stages: list[Stage], cases: tuple[str, ...], peers: tuple[str, ...]
) -> tuple[list[Stage], set[str]]:
    """The stages left by the patterns, and which cases of our table alone; none chooses all.

    A choice of peers leaves out the cases without a peer, unless they are chosen by name.

    >>> left, alone = choose(all_stages(QUICK), ("W1 lookup", "mem*"), ("nn.Embedding",))
    >>> [(c.name, c.output, c.peers) for s in left for c in s.cases], alone
    ([('W1 lookup', 'fresh', ('nn.Embedding',))], {'memory'})
    """
    alone = {MEMORY, INSERT_CALLS}
    known_cases = alone | {case.name for stage in stages for case in stage.cases}
    _check_patterns("case", cases, known_cases)
    _check_patterns("peer", peers, {peer for stage in stages for peer in stage.peers()})
    left = []
    for stage in stages:
        kept = (
            replace(case, peers=tuple(p for p in case.peers if _matches(p, peers)))
            for case in stage.cases
            if _matches(case.name, cases)
        )
        kept = tuple(case for case in kept if case.peers)
        if kept:
            left.append(replace(stage, cases=kept))
    chosen = {name for name in alone if _matches(name, cases)} if cases or not peers else set()
    if not left and not chosen:
        raise InputError(
            f"none of the cases {', '.join(cases) or '*'} has one of the peers {', '.join(peers)}; "
            f"choose others, or leave out --peers."
        )
    return left, chosen


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return not patterns or any(fnmatchcase(name.lower(), p.lower()) for p in patterns)


def _check_patterns(kind: str, patterns: tuple[str, ...], known: Iterable[str]) -> None:
    for pattern in patterns:
        if not any(_matches(name, (pattern,)) for name in known):
            checks.unknown(kind, pattern, known)
