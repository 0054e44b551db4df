"""A model of two modules with rows, and what every rank does with it."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

import hedgerow as hr


class Model(nn.Module):
    """Bags of two tables, one of them at the given rate, a sequence and a dense layer."""

    def __init__(self, rate: float = 1.0) -> None:
        super().__init__()
        tables = [
            hr.Table("user", 4, optimizer=hr.Sgd(lr=rate)),
            hr.Table("item", 4, optimizer=hr.Sgd(lr=1.0)),
        ]
        self.bags = hr.EmbeddingBags(tables, seed=1)
        self.words = hr.Embeddings([hr.Table("word", 4)], optimizer=hr.Sgd(lr=1.0), seed=1)
        torch.manual_seed(0)
        self.top = nn.Linear(4, 1)

    def forward(self, ids: hr.IdBatch) -> Tensor:
        """One number a sample."""
        vectors, words = self.bags(ids), self.words(ids)["word"].to_padded(length=2)
        return self.top(vectors["user"] + vectors["item"] + words.sum(1)).squeeze(1)


def batch(shift: int = 0) -> hr.IdBatch:
    """Two users, one item, four words; others with another shift."""
    add = 10 * shift
    return hr.IdBatch.from_lists(
        {
            "user": [[1 + add], [2 + add]],
            "item": [[3 + add], []],
            "word": [[1 + add, 2 + add], [3 + add, 4 + add]],
        }
    )


def sizes(model: Model) -> tuple[int, int]:
    """Rows of the bags and of the sequence."""
    return model.bags.store.size(), model.words.store.size()


def over_ranks() -> dict[str, int]:
    """Rows of this rank after steps of a model whose users have the rate 0 and words are frozen."""
    model = Model(rate=0)
    spread = hr.distribute(model)
    model.words.requires_grad_(False)
    for _ in range(2):
        out = spread(batch())
        # One rank's loss has nothing but rows that stand still.
        (out if dist.get_rank() else out * 0.5).sum().backward()
    spread.requires_grad_(False)
    spread(batch(1))
    return {**model.bags.row_counts(), **model.words.row_counts()}
