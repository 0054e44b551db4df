"""DeepFM on MovieLens-100K, on one process or on many, with the same lines.

    python examples/movielens.py --train
    torchrun --standalone --nproc_per_node=2 examples/movielens.py --train

`--dist_type roundrobin` spreads ids by another rule. Without --train it builds the model and says
what it is. Every process takes its part of every batch (`share`), so the job learns the same on
any number of processes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import nn

import hedgerow as hr
from hedgerow.launch.process_group import process_group
from hedgerow.launch.rank_info import RankInfo, rank_zero_printer
from hedgerow.routing import SUPPORTED_DIST_TYPES
from hedgerow.train.metrics import BinaryMetrics

FEATURES = ("user", "item", "age", "gender", "occupation", "zip_code", "release_year", "genres")
DIM, ROWS = 8, 2000  # rows: of the ranges of `continuous`; other ids go by modulo


def build(dist_type: str) -> nn.Module:
    """One table a feature, all spread by the same rule."""
    tables = [hr.Table(name, DIM, dist_type=dist_type, rows=ROWS) for name in FEATURES]
    return hr.models.DeepFM(tables, optimizer=hr.Adagrad(lr=0.05), seed=1)


def train(model: nn.Module, info: RankInfo, given: argparse.Namespace) -> float:
    """Some epochs; the mean loss of the last steps, of all processes."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    stream = hr.data.movielens(given.batch_size, "train", seed=1, cache=given.cache)
    stream.share()
    losses: list[float] = []
    for _ in range(given.epochs):
        for batch in stream:
            logits = model(batch.dense, batch.ids)
            loss = nn.functional.binary_cross_entropy_with_logits(logits, batch.labels)
            optimizer.zero_grad()
            loss.backward()  # rows change here, on the processes that own them
            optimizer.step()
            losses.append(loss.item())
    last = torch.tensor(losses[-50:]).mean()
    dist.all_reduce(last)
    return last.item() / info.world_size


def evaluate(model: nn.Module, info: RankInfo, given: argparse.Namespace) -> dict[str, float]:
    """Metrics over the test split; every process takes part in every batch."""
    metrics = BinaryMetrics()
    model.eval()
    with torch.no_grad():
        for batch in hr.data.movielens(4096, "test", cache=given.cache).share():
            metrics.update(model(batch.dense, batch.ids), batch.labels)
    states: list[dict[str, torch.Tensor]] = [{}] * info.world_size
    dist.all_gather_object(states, metrics.state_dict())
    for rank, state in enumerate(states):
        if rank != info.rank:
            other = BinaryMetrics()
            other.load_state_dict(state)
            metrics.merge(other)
    return metrics.result()


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description="DeepFM on MovieLens-100K, on many processes")
    parser.add_argument("--train", action="store_true", help="train and evaluate")
    parser.add_argument(
        "--dist_type",
        choices=SUPPORTED_DIST_TYPES,
        default="hash_roundrobin",
        help="who owns an id (docs/concepts/routing.md); %(default)s if not given",
    )
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch_size", type=int, default=512, help="of all processes together")
    parser.add_argument("--cache", help="where the data is kept; fetched there at first use")
    return parser.parse_args(argv)


def run(info: RankInfo, given: argparse.Namespace, say: Callable[..., None]) -> None:
    """Builds, perhaps trains, and tells."""
    torch.manual_seed(1)
    model = hr.distribute(build(given.dist_type))
    if given.train:
        say(f"loss {train(model, info, given):.4f}")
        found = evaluate(model, info, given)
        say(f"test auc {found['auc']:.4f} of {found['samples']:.0f} samples")
    say(hr.summary(model))


def main(argv: Sequence[str] | None = None) -> None:
    """The whole job; nothing happens before."""
    given = arguments(argv)
    with process_group() as info:
        run(info, given, rank_zero_printer(info))


if __name__ == "__main__":
    main()
