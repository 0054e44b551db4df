"""A factorization model on synthetic clicks, with nothing but a table: no vocabulary, no modules.

Users and items are raw 64-bit ids. Each owns a row of one bias and `DIM` factors, born on its first
update. The score of a pair is the sum of both biases and the product of the factors.

    python examples/local_table.py [--steps 600]
"""

from __future__ import annotations

import argparse

import torch

import hedgerow as hr

DIM, BATCH, USERS, ITEMS = 8, 4096, 2000, 500


class Clicks:
    """Clicks drawn from hidden factors, so that there is something to find."""

    def __init__(self, seed: int) -> None:
        self._random = torch.Generator().manual_seed(seed)
        self._user_ids = self._ids(USERS)
        self._item_ids = self._ids(ITEMS)
        self._user_taste = torch.randn(USERS, 4, generator=self._random)
        self._item_taste = torch.randn(ITEMS, 4, generator=self._random)

    def _ids(self, n: int) -> torch.Tensor:
        return torch.randint(-(2**63), 2**63 - 1, (n,), generator=self._random)

    def batch(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Ids of users, ids of items, and whether each pair was a click."""
        users = torch.randint(USERS, (BATCH,), generator=self._random)
        items = torch.randint(ITEMS, (BATCH,), generator=self._random)
        score = (self._user_taste[users] * self._item_taste[items]).sum(1)
        chance = torch.sigmoid(2 * score)
        clicked = torch.rand(BATCH, generator=self._random) < chance
        return self._user_ids[users], self._item_ids[items], clicked.float()

    def best_loss(self) -> float:
        """What a model that knew the hidden factors would reach."""
        chance = torch.sigmoid(2 * self._user_taste @ self._item_taste.T)
        return float(torch.nn.functional.binary_cross_entropy(chance, chance))


def make_table(name: str) -> hr.HostTable:
    """A row is a bias that follows FTRL and factors that follow Adagrad."""
    bias = hr.Segment(1, hr.Zeros(), hr.Ftrl(lr=0.1, beta=1.0))
    factors = hr.Segment(DIM, hr.Uniform(0.3), hr.Adagrad(lr=0.1))
    return hr.HostTable(hr.TableConfig(name, (bias, factors)))


def train(steps: int) -> None:
    """Fits both tables and prints how it goes."""
    clicks, users, items = Clicks(seed=1), make_table("user"), make_table("item")
    print(f"a coin gives loss 0.6931; with the hidden factors known: {clicks.best_loss():.4f}")
    total = 0.0
    for step in range(1, steps + 1):
        user_ids, item_ids, clicked = clicks.batch()
        # First values stand in for ids never seen: still no row is inserted by reading.
        u = users.lookup(user_ids, missing="initializer").rows_of().requires_grad_()
        i = items.lookup(item_ids, missing="initializer").rows_of().requires_grad_()
        score = u[:, 0] + i[:, 0] + (u[:, 1:] * i[:, 1:]).sum(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(score, clicked)
        # Every row gets the gradient of its own samples' loss, whatever the batch size.
        u_grad, i_grad = torch.autograd.grad(loss * BATCH, (u, i))
        users.apply_gradients(user_ids, u_grad, step=step)
        items.apply_gradients(item_ids, i_grad, step=step)
        total += loss.item()
        if step % 50 == 0:
            rows = f"{users.size()} users, {items.size()} items"
            print(f"step {step:5d} of {steps}   loss {total / 50:.4f}   rows {rows}", flush=True)
            total = 0.0
    for table in (users, items):
        use = table.memory()
        print(
            f"{table.config.name}: {table.size()} rows, {use.row_bytes} bytes of rows, "
            f"{use.index_bytes} of index, {use.slack_bytes} of slack"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A factorization model on synthetic clicks.")
    parser.add_argument("--steps", type=int, default=600, help="batches to train on")
    train(parser.parse_args().steps)
