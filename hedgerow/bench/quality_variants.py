"""One model with its rows kept in different ways: one an id, shared by hashing, in a vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from ..core.hashing import mix64
from ..core.id_batch import IdBatch
from ..core.ids import Ragged
from ..nn.bags import EmbeddingBags

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
        return max(1, len(known[table]) // divisor)

    def ids(batch: IdBatch, known: Ids) -> IdBatch:
        columns: dict[str, Ragged | Tensor] = {}
        for name in batch.names:
            column = batch.feature(name)
            rows = torch.remainder(mix64(column.values ^ seed), rows_of(known, tables[name]))
            columns[name] = Ragged.trusted(rows, column.row_splits)
        return IdBatch.from_dict(columns)

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
