"""Training steps on a GPU as users take them: through a module and autograd."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hedgerow.core.id_batch import Cut, IdBatch

from .gpu_timer import Case, Peer

SKEW = 1.05
BATCHES = 10
_ID, _NOTE, _LINE, _SECTOR = 8, 4, 128, 32
_SPREAD = 0x9E3779B1  # odd: ids of frequent rows do not follow each other


@dataclass(frozen=True, slots=True)
class Work:
    """What a step reads and learns."""

    name: str
    tables: int
    rows: int  # of each table
    samples: int
    bag: int  # ids of each bag
    dim: int
    uniform: bool = False

    @property
    def ids(self) -> int:
        """Ids of a step."""
        return self.tables * self.samples * self.bag

    def batch(self, seed: int, device: torch.device) -> Tensor:
        """The ids of one step, table after table."""
        random = torch.Generator(device).manual_seed(seed)
        shape = (self.tables, self.samples * self.bag)
        draws = torch.rand(shape, dtype=torch.float64, device=device, generator=random)
        if self.uniform:
            ranks = (draws * self.rows).long()
        else:
            shares = torch.arange(1, self.rows + 1, dtype=torch.float64, device=device)
            edges = (shares**-SKEW).cumsum(0)
            ranks = torch.searchsorted(edges, draws * edges[-1]).clamp(max=self.rows - 1)
        return (ranks * _SPREAD % self.rows).view(-1)

    def moved_bytes(self, ids: Tensor, states: int) -> int:
        """What forward and update cannot avoid: everything they touch, once."""
        distinct = sum(len(part.unique()) for part in ids.split(self.samples * self.bag))
        vector, vectors = 4 * self.dim, self.tables * self.samples
        forward = self.ids * (_ID + 2 * _NOTE) + distinct * (_LINE + vector) + vectors * vector
        row = vector + 4 * states
        sorted_ = self.ids * (3 * _NOTE + 2 * _ID)
        update = vectors * vector + distinct * (2 * row + 2 * _SECTOR)
        return forward + sorted_ + update


def works(quick: bool) -> list[Work]:
    """The works of a step, the most common first."""
    if quick:
        return [
            Work("one id a bag", 2, 20, 3, 1, 8),
            Work("ten ids a bag", 2, 20, 2, 10, 8),
            Work("26 tables x 4096 ids", 3, 20, 2, 1, 8),
            Work("one id a bag, uniform", 2, 20, 3, 1, 8, uniform=True),
        ]
    return [
        Work("one id a bag", 10, 1_677_721, 104_857, 1, 128),
        Work("ten ids a bag", 10, 1_677_721, 10_486, 10, 128),
        Work("26 tables x 4096 ids", 26, 1_000_000, 4096, 1, 64),
        Work("one id a bag, uniform", 10, 1_677_721, 104_857, 1, 128, uniform=True),
    ]


def module_cases(device: torch.device, quick: bool) -> Iterator[Case]:
    """Steps of `hr.EmbeddingBags`, with SGD and with Adam, beside those of FBGEMM's TBE."""
    for work in works(quick):
        for rule in ("sgd", "adam"):
            name = f"module, {rule}, {work.name}"
            ids = [work.batch(seed, device) for seed in range(2 if quick else BATCHES)]
            states = 2 * work.dim if rule == "adam" else 0
            try:
                run = _our_steps(work, rule, ids)
            except ImportError as error:  # modules need the C++ core
                yield Case(name, 0, lambda: None, missing=str(error))
                continue
            yield Case(
                name,
                work.moved_bytes(ids[0], states),
                run,
                items=work.ids,
                peer=_tbe(work, rule, ids),
                in_a_row=len(ids),
            )
            del run


def _our_steps(work: Work, rule: str, ids: list[Tensor]) -> Callable[[], None]:
    """One step per call; every row is there before."""
    from hedgerow.nn.embedding_modules import EmbeddingBags
    from hedgerow.tables.config import Table
    from hedgerow.tables.initializers import Zeros
    from hedgerow.tables.optimizers import Adam, Sgd

    device, names = ids[0].device, tuple(f"f{k:02d}" for k in range(work.tables))
    learns = Sgd(lr=0.01) if rule == "sgd" else Adam(lr=0.01)
    tables = [Table(f"t{name}", work.dim, features=[name], pooling="sum") for name in names]
    bags = EmbeddingBags(tables, init=Zeros(), optimizer=learns)
    bags.place(device, capacity_rows={f"t{name}": work.rows for name in names})

    def batch(flat: Tensor, offsets: Tensor, bag: int) -> IdBatch:
        share = len(flat) // work.tables
        borders = tuple(share * k for k in range(work.tables + 1))
        return IdBatch(names, flat, offsets, None, Cut(borders, bag == 1))

    for start in range(0, work.rows, 100_000):
        rows = torch.arange(start, min(work.rows, start + 100_000), device=device)
        flat = rows.repeat(work.tables)
        offsets = torch.arange(len(flat) + 1, device=device)
        vectors = list(bags(batch(flat, offsets, 1)).values())
        torch.autograd.backward(vectors, [torch.zeros_like(vector) for vector in vectors])
    grads = _gradients(work, device)
    parts, turn = [part.contiguous() for part in grads.split(work.dim, dim=1)], [0]
    offsets = torch.arange(0, work.ids + 1, work.bag, device=device)

    def step() -> None:
        turn[0] += 1
        vectors = bags(batch(ids[turn[0] % len(ids)], offsets, work.bag))
        torch.autograd.backward(list(vectors.values()), parts)

    return step


def _gradients(work: Work, device: torch.device) -> Tensor:
    random = torch.Generator(device).manual_seed(99)
    shape = (work.samples, work.tables * work.dim)
    return torch.randn(shape, device=device, generator=random) * 0.01


def _tbe(work: Work, rule: str, ids: list[Tensor]) -> Peer:
    """The same steps by FBGEMM's table-batched embeddings, if they can be imported."""
    try:
        made = _their_module(work, rule, ids[0].device)
    except Exception as error:  # a library for another card may fail in any way
        return Peer("TBE", missing=f"{type(error).__name__}: {error}"[:200])
    offsets = torch.arange(0, work.ids + 1, work.bag, device=ids[0].device)
    grads, turn = _gradients(work, ids[0].device), [0]

    def step() -> None:
        turn[0] += 1
        made(ids[turn[0] % len(ids)], offsets).backward(grads)

    return Peer("TBE", step)


def _their_module(work: Work, rule: str, device: torch.device) -> Any:
    if device.type != "cuda":
        raise ImportError("TBE runs on a GPU alone here")
    from fbgemm_gpu import (  # pyright: ignore[reportMissingImports]
        split_embedding_configs as configs,
    )
    from fbgemm_gpu import (  # pyright: ignore[reportMissingImports]
        split_table_batched_embeddings_ops_common as common,
    )
    from fbgemm_gpu import (  # pyright: ignore[reportMissingImports]
        split_table_batched_embeddings_ops_training as training,
    )

    kinds = configs.EmbOptimType
    made = training.SplitTableBatchedEmbeddingBagsCodegen(
        [(work.rows, work.dim, common.EmbeddingLocation.DEVICE, training.ComputeDevice.CUDA)]
        * work.tables,
        optimizer=kinds.EXACT_SGD if rule == "sgd" else kinds.ADAM,
        weights_precision=configs.SparseType.FP32,
        stochastic_rounding=False,
        pooling_mode=common.PoolingMode.SUM,
        output_dtype=configs.SparseType.FP32,
        device=device,
        learning_rate=0.01,
        eps=1e-8,
        bounds_check_mode=common.BoundsCheckMode.NONE,
    ).to(device)
    for weights in made.split_embedding_weights():
        weights.zero_()
    return made
