"""Freshness pays: a model that learns online, served with a sync each second, each minute, never.

Clicks come from a world that drifts: every second some items change what they are liked for. One
model learns from them as they come. Three replicas serve it, each with a publisher of its own:
one sends what changed every second of the stream, one every 60, one never. Seconds are those of
the stream, so the run is faster than they are; all else is real: bundles, servers, pushes, gRPC.

    python examples/realtime.py --out build/realtime
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor, nn

import hedgerow as hr
from hedgerow.core.files import new_figure, save_figure
from hedgerow.serving.client import PredictionClient
from hedgerow.train.metrics import BinaryMetrics

USERS, ITEMS, TASTES, DIM = 2_000, 500, 4, 16
CHANGED_A_SECOND = 5  # items
PERIODS = {"1 s": 1, "60 s": 60, "no sync": None}
COLORS = ("#1b7f4d", "#d97b0b", "#b3261e")


class World:
    """Who likes what, and how that changes."""

    def __init__(self, seed: int = 0) -> None:
        self._draw = torch.Generator().manual_seed(seed)
        self._users = self._randn(USERS)
        self._items = self._randn(ITEMS)
        self._ids = torch.randint(-(2**62), 2**62, (USERS + ITEMS,), generator=self._draw)

    def _randn(self, count: int) -> Tensor:
        return torch.randn(count, TASTES, generator=self._draw)

    def drift(self) -> None:
        """A second passes: some items are liked for other things."""
        changed = torch.randperm(ITEMS, generator=self._draw)[:CHANGED_A_SECOND]
        self._items[changed] = self._randn(CHANGED_A_SECOND)

    def clicks(self, count: int) -> tuple[dict[str, Tensor], Tensor]:
        """Ids of users and items, and who clicked."""
        user = torch.randint(USERS, (count,), generator=self._draw)
        item = torch.randint(ITEMS, (count,), generator=self._draw)
        likes = (self._users[user] * self._items[item]).sum(1)
        clicked = torch.rand(count, generator=self._draw) < torch.sigmoid(2.0 * likes)
        return {"user": self._ids[user], "item": self._ids[USERS + item]}, clicked.float()


class Model(nn.Module):
    """How alike a user's row and an item's row are."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = hr.EmbeddingBags(
            [hr.Table("user", DIM), hr.Table("item", DIM)],
            init=hr.Uniform(0.3),
            optimizer=hr.Adagrad(lr=0.3),
        )
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, ids: hr.IdBatch) -> Tensor:
        """A logit for each sample."""
        found = self.rows(ids)
        return (found["user"] * found["item"]).sum(1) + self.bias


def batch_of(ids: dict[str, Tensor]) -> hr.IdBatch:
    """One id of each feature in each sample."""
    return hr.IdBatch.from_lists({name: [[i] for i in own.tolist()] for name, own in ids.items()})


def learn(model: Model, dense: torch.optim.Optimizer, ids: hr.IdBatch, clicked: Tensor) -> None:
    """One step."""
    dense.zero_grad()
    nn.functional.binary_cross_entropy_with_logits(model(ids), clicked).backward()
    dense.step()


def served_logits(client: PredictionClient, ids: dict[str, Tensor]) -> Tensor:
    """What a replica answers."""
    ones = torch.ones(len(ids["user"]), dtype=torch.int64)
    lengths = {f"{name}_lengths": ones for name in ids}
    return client.predict("entry", "serving_default", {**ids, **lengths})["output"]


def run(seconds: int, window: int, samples: int, warm_up: int) -> dict[str, list[float]]:
    """AUC of served predictions in each window of seconds, by how often replicas are fed."""
    world, model = World(), Model()
    dense = torch.optim.SGD(model.parameters(), lr=0.1)
    ids, clicked = world.clicks(samples)
    for _ in range(warm_up):
        learn(model, dense, batch_of(ids), clicked)
        ids, clicked = world.clicks(samples)
    found: dict[str, list[float]] = {name: [] for name in PERIODS}
    with tempfile.TemporaryDirectory() as base, ExitStack() as stack:
        hr.serving.export(model, base, example=batch_of(ids), version=1)
        publishers, clients = {}, {}
        for name in PERIODS:
            replica = stack.enter_context(hr.serving.Replica(base))
            clients[name] = stack.enter_context(PredictionClient(replica.address))
            if PERIODS[name] is not None:
                made = hr.publish(model, replica.address, every="1h", dense_every="0s")
                publishers[name] = stack.enter_context(made)
        metrics = {name: BinaryMetrics() for name in PERIODS}
        for second in range(1, seconds + 1):
            world.drift()
            ids, clicked = world.clicks(samples)
            for name, client in clients.items():
                metrics[name].update(served_logits(client, ids), clicked)
            learn(model, dense, batch_of(ids), clicked)
            for name, publisher in publishers.items():
                if second % PERIODS[name] == 0 and not publisher.flush(120):
                    raise RuntimeError(f"a replica is away: {publisher.status()}")
            if second % window == 0:
                for name, own in metrics.items():
                    found[name].append(own.result()["auc"])
                    own.reset()
    return found


def table_of(found: dict[str, list[float]], window: int) -> str:
    """A line for each window, and the means."""
    lines = ["second    " + "".join(f"{name:>10}" for name in found)]
    for number, row in enumerate(zip(*found.values(), strict=True), start=1):
        lines.append(f"{number * window:<10}" + "".join(f"{auc:>10.4f}" for auc in row))
    means = (sum(aucs) / len(aucs) for aucs in found.values())
    return "\n".join([*lines, f"{'mean':<10}" + "".join(f"{auc:>10.4f}" for auc in means)])


def draw(found: dict[str, list[float]], window: int, path: Path) -> None:
    """AUC over time as a picture; each line is named where it ends, with its mean."""
    figure = new_figure(9, 4.8)
    axes = figure.add_subplot()
    ends = [window * (i + 1) for i in range(len(next(iter(found.values()))))]
    for at in range(PERIODS["60 s"] or 1, ends[-1], PERIODS["60 s"] or 1):
        axes.axvline(at, color="#e4e4e4", linewidth=1, zorder=0)
    for (name, aucs), color in zip(found.items(), COLORS, strict=True):
        axes.plot(ends, aucs, color=color, linewidth=2.2, marker="o", markersize=4)
        mean = sum(aucs) / len(aucs)
        label = f"{name if name == 'no sync' else 'every ' + name}\nmean {mean:.3f}"
        axes.annotate(
            label,
            (ends[-1], aucs[-1]),
            xytext=(10, 0),
            textcoords="offset points",
            color=color,
            va="center",
            fontweight="bold",
        )
    axes.axhline(0.5, color="#888888", linewidth=1, linestyle="--")
    axes.annotate("guessing", (0, 0.5), xytext=(2, 4), textcoords="offset points", color="#888888")
    axes.set_xlim(0, ends[-1])
    axes.set_xlabel("seconds of the stream (grey lines: a sync of every 60 s)")
    axes.set_ylabel("AUC of served predictions")
    figure.suptitle("Fresher rows, better answers", fontweight="bold")
    axes.set_title(
        f"{CHANGED_A_SECOND} of {ITEMS} items change each second; one model learns from all clicks",
        fontsize=9.5,
        color="#555555",
    )
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    save_figure(figure, path)


def main() -> None:
    """Runs it, prints the table, writes the table and the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("build/realtime"))
    parser.add_argument("--seconds", type=int, default=360)
    parser.add_argument("--window", type=int, default=15)
    parser.add_argument("--samples", type=int, default=1024, help="clicks in a second")
    parser.add_argument("--warm-up", type=int, default=200, help="steps before the export")
    given = parser.parse_args()
    if not 0 < given.window <= given.seconds:
        parser.error(f"--window {given.window} must be from 1 to the {given.seconds} seconds.")
    found = run(given.seconds, given.window, given.samples, given.warm_up)
    text = table_of(found, given.window)
    print(text)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "auc.txt").write_text(text + "\n")
    draw(found, given.window, given.out / "auc.png")


if __name__ == "__main__":
    main()
