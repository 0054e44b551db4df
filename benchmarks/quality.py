"""`hedgerow bench quality`: what collisions cost, with the same model, optimizer and seeds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from hedgerow import native
from hedgerow.cli.train_report import hashed_ids, shared_rows
from hedgerow.core import checks
from hedgerow.core.errors import InputError
from hedgerow.core.id_batch import IdBatch
from hedgerow.data.movielens_100k import FEATURES, movielens
from hedgerow.data.source import Batch, Source
from hedgerow.data.synthetic_clicks import SyntheticClicks, clicks
from hedgerow.models.deepfm import DeepFM
from hedgerow.nn.embedding_modules import EmbeddingBags
from hedgerow.tables.config import Table
from hedgerow.tables.optimizers import Adagrad
from hedgerow.train.evaluate import evaluate

from .ours import Ours
from .rounds import Progress, machine

Ids = Mapping[str, Tensor]  # table -> all ids of the training data, each once


class ModelOfBags(Protocol):
    """A model whose tables are in `bags`."""

    bags: nn.Module

    def __call__(self, dense: Tensor, ids: IdBatch) -> Tensor:
        """One logit a sample."""
        ...


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to keep rows: what a batch's ids become, and what stands in for the model's bags."""

    name: str
    rows: Callable[[Ids], int]
    ids: Callable[[IdBatch, Ids], IdBatch]
    bags: Callable[[EmbeddingBags, Ids], nn.Module]


def collisionless() -> Variant:
    """Every id has its own row."""
    return Variant(
        "collisionless",
        rows=lambda known: sum(len(ids) for ids in known.values()),
        ids=lambda batch, _: batch,
        bags=lambda bags, _: bags,
    )


def hashed(divisor: int, tables: Mapping[str, str], seed: int = 0) -> Variant:
    """Ids share 1/divisor of the rows: a hash of an id, modulo the number of rows, is its row.

    `tables` says whose rows a feature has.
    """

    def rows_of(known: Ids, table: str) -> int:
        return shared_rows(len(known[table]), divisor)

    def ids(batch: IdBatch, known: Ids) -> IdBatch:
        return hashed_ids(batch, lambda feature: rows_of(known, tables[feature]), seed)

    return Variant(
        f"hashed to 1/{divisor}",
        rows=lambda known: sum(rows_of(known, table) for table in known),
        ids=ids,
        bags=lambda bags, _: bags,
    )


def vocabulary() -> Variant:
    """`nn.EmbeddingBag` over all ids of the training data, from the same first values."""
    return Variant(
        "nn.EmbeddingBag",
        rows=lambda known: sum(len(ids) for ids in known.values()),
        ids=lambda batch, _: batch,
        bags=lambda bags, known: VocabularyBags(bags, known),
    )


class VocabularyBags(nn.Module):
    """Sum-pooled `nn.EmbeddingBag`s that start from the first values of `bags`.

    An id that is not in the vocabulary counts as zeros.
    """

    def __init__(self, bags: EmbeddingBags, known: Ids) -> None:
        super().__init__()
        self._ids = {name: ids.sort().values for name, ids in known.items()}
        self._tables = {f: table.name for table in bags.tables for f in table.features}
        self.weights = nn.ModuleDict()
        for table in bags.tables:
            ids = self._ids[table.name]
            first = bags.table(table.name).lookup(ids, missing="training", step=0).rows_of()
            unknown = torch.zeros(1, table.dim)
            self.weights[table.name] = nn.EmbeddingBag.from_pretrained(
                torch.cat([first, unknown]),
                freeze=False,
                mode="sum",
                sparse=True,
                padding_idx=len(ids),
            )

    def forward(self, batch: IdBatch) -> dict[str, Tensor]:
        """Vectors by feature."""
        return {feature: self._vectors(feature, batch) for feature in self._tables}

    def _vectors(self, feature: str, batch: IdBatch) -> Tensor:
        column, table = batch.feature(feature), self._tables[feature]
        ids = self._ids[table]
        place = torch.searchsorted(ids, column.values).clamp(max=len(ids) - 1)
        number = torch.where(ids[place] == column.values, place, len(ids))
        return self.weights[table](number, column.row_splits[:-1])


def known_ids(batches: Sequence[IdBatch], tables: Mapping[str, str]) -> dict[str, Tensor]:
    """Every id of these batches by table, each once; `tables` says whose rows a feature has."""
    found: dict[str, list[Tensor]] = {}
    for batch in batches:
        for feature, table in tables.items():
            found.setdefault(table, []).append(batch.feature(feature).values)
    return {table: torch.cat(parts).unique() for table, parts in found.items()}


RATE = 0.05  # of rows, in every variant


@dataclass(frozen=True, slots=True)
class QualityWork:
    """Data and model of one case; everything but the way rows are kept."""

    name: str
    tables: Sequence[Table]
    dense: int
    epochs: int
    train: Callable[[int], Source]  # of a seed
    test: Callable[[int], Source]
    best_auc: Callable[[int], float] | None = None  # where the truth is known

    def table_of(self) -> dict[str, str]:
        """Feature to table."""
        return {feature: table.name for table in self.tables for feature in table.features}

    def model(self, seed: int) -> DeepFM:
        """A new model; rows and layers depend on the seed alone."""
        return DeepFM(self.tables, dense=self.dense, optimizer=Adagrad(lr=RATE), seed=seed)


def movielens_work(quick: bool) -> QualityWork:
    """Who likes which movie; the last fifth of each user's ratings is the test."""
    return QualityWork(
        "movielens-100k",
        tables=[Table(feature, 8) for feature in FEATURES],
        dense=0,
        epochs=1 if quick else 4,
        train=lambda seed: movielens(8192 if quick else 512, "train", seed=seed),
        test=lambda _: movielens(4096, "test"),
    )


def clicks_work(quick: bool) -> QualityWork:
    """Synthetic clicks, of another truth for every seed."""
    steps = 20 if quick else 400

    def source(seed: int) -> SyntheticClicks:
        return clicks(batch_size=1024, steps=steps, seed=seed, users=2_000, items=800)

    return QualityWork(
        "synthetic clicks",
        tables=[Table("user", 8), Table("item", 8, features=["item", "history"])],
        dense=4,
        epochs=1,
        train=source,
        test=lambda seed: source(seed).held_out(4096, 2 if quick else 20),
        best_auc=lambda seed: source(seed).best(20_000 if quick else 200_000).auc,
    )


WORKS = {"movielens-100k": movielens_work, "synthetic clicks": clicks_work}


DIVISORS = (2, 4, 10)


def run(
    progress: Progress,
    *,
    seeds: int = 5,
    cases: Sequence[str] = (),
    quick: bool = False,
    png: Path | None = None,
) -> dict[str, Any]:
    """AUC of every variant over the seeds; one report, and a picture where `png` says."""
    checks.count("seeds", seeds, least=1)
    chosen = [n for n in WORKS if not cases or any(fnmatchcase(n, c) for c in cases)]
    if not chosen:
        raise InputError(f"cases is {list(cases)}; known: {', '.join(WORKS)}.")
    works = [WORKS[name](quick) for name in chosen]
    total, done, results = len(works) * seeds * (2 + len(DIVISORS)), 0, []
    for work in works:
        aucs: dict[str, list[dict[str, float]]] = {}
        for seed in range(seeds):
            for variant, found in _of_seed(work, seed):
                done += 1
                aucs.setdefault(variant, []).append(found)
                progress(f"{work.name}, {variant}, seed {seed}", done, total)
        results += [_summed(work.name, variant, runs) for variant, runs in aucs.items()]
    if png is not None:
        _picture(results, png)
    return {
        "bench": "quality",
        "work": {**machine(), "seeds": seeds, "quick": quick, "threads": native.threads()},
        "versions": Ours.versions(),
        "results": results,
    }


def _of_seed(work: QualityWork, seed: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Every variant on the same batches."""
    source = work.train(seed)
    epochs = [list(source) for _ in range(work.epochs)]
    test = list(work.test(seed))
    tables = work.table_of()
    known = known_ids([batch.ids for batch in epochs[0]], tables)
    best = {} if work.best_auc is None else {"best_auc": work.best_auc(seed)}
    for variant in (
        collisionless(),
        *(hashed(divisor, tables, seed) for divisor in DIVISORS),
        vocabulary(),
    ):
        found = trained(work, variant, epochs, test, known, seed)
        yield variant.name, {**found, **best, "rows": variant.rows(known)}


def trained(
    work: QualityWork,
    variant: Variant,
    epochs: Sequence[Sequence[Batch]],
    test: Sequence[Batch],
    known: dict[str, torch.Tensor],
    seed: int,
) -> dict[str, float]:
    """Metrics on the test data after training on every epoch."""
    torch.manual_seed(seed)
    model = work.model(seed)
    model.bags = variant.bags(model.bags, known)  # pyright: ignore[reportAttributeAccessIssue]
    rows = list(model.bags.parameters())  # none, where rows are in tables
    optimizers: list[torch.optim.Optimizer] = [torch.optim.Adam(model.over.parameters(), lr=1e-3)]
    if rows:
        optimizers.append(torch.optim.Adagrad(rows, lr=RATE))

    def changed(batch: Batch) -> Batch:
        return Batch(batch.dense, variant.ids(batch.ids, known), batch.labels)

    with torch.sparse.check_sparse_tensor_invariants(False):  # or torch warns that it is off
        for batch in (changed(batch) for epoch in epochs for batch in epoch):
            logits = model(batch.dense, batch.ids)
            loss = functional.binary_cross_entropy_with_logits(logits, batch.labels)
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
    return evaluate(model, map(changed, test))


def _summed(case: str, variant: str, runs: Sequence[dict[str, float]]) -> dict[str, Any]:
    aucs, losses = [run["auc"] for run in runs], [run["loss"] for run in runs]
    best = [run["best_auc"] for run in runs if "best_auc" in run]
    more = {"best_auc": round(statistics.mean(best), 5)} if best else {}
    return {
        "case": case,
        "variant": variant,
        "rows": round(statistics.mean(run["rows"] for run in runs)),
        "auc": round(statistics.mean(aucs), 5),
        "spread": round(statistics.stdev(aucs), 5) if len(aucs) > 1 else 0.0,
        "loss": round(statistics.mean(losses), 5),
        "aucs": [round(auc, 5) for auc in aucs],
        **more,
    }


def _picture(results: Sequence[dict[str, Any]], path: Path) -> None:
    from hedgerow.train.plot import bars

    rows = [(r["case"], r["variant"], r["auc"], r["spread"]) for r in results]
    bars(rows, path, title="What collisions cost", unit="AUC on test data", start=0.5)
