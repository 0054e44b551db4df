"""What the quality of tables is measured on: MovieLens-100K, and clicks whose truth is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..data.batch import Source
from ..data.movielens_100k import FEATURES, movielens
from ..data.synthetic_clicks import SyntheticClicks, clicks
from ..models.deepfm import DeepFM
from ..tables.optimizers import Adagrad
from ..tables.table import Table

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
