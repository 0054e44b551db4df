"""What every rank does in the test of row sources: it reads what it owns, and only that."""

from __future__ import annotations

import torch.distributed as dist

import hedgerow as hr
from hedgerow.serving.publish import row_sources

IDS = list(range(60))


def changed_rows_of_a_rank() -> tuple[int, int, list[int], list[int], list[int]]:
    """The source's place, the ids of two takes, and those of all its rows."""
    tables = [hr.Table("user", 2)]
    model = hr.distribute(hr.EmbeddingBags(tables, optimizer=hr.Sgd(lr=0.5), init=hr.Zeros()))
    (source,) = row_sources(model)
    rank = dist.get_rank()

    def learn(ids: list[int]) -> None:
        batch = hr.IdBatch.from_lists({"user": [ids]})
        model(batch)["user"].sum().backward()

    learn(IDS[rank::2])
    first = source.take()["user"].ids.tolist()
    learn([7])
    second = source.take()["user"].ids.tolist()
    every = [key for ids in source.all_ids("user") for key in ids.tolist()]
    source.close()
    return source.shard, source.shards, sorted(first), second, sorted(every)
