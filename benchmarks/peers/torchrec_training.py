"""DLRM on TorchRec: sparse gradients, fused steps, and rows sharded over two ranks."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from .subject import serve
from .training import Training
from .two_ranks import RANKS, Pair


class JaggedTraining(Training):
    """Takes row numbers. The jagged tensor is made in the step: what it derives from its ids it
    keeps, and no batch of a real job comes twice.
    """

    packages: ClassVar[tuple[str, ...]] = ("torch", "torchrec", "fbgemm-gpu-cpu")
    collection: Any
    weights: list[Tensor]

    def make_rows(self) -> None:
        """The collection, with our first rows."""
        self._keys = [f"f{table}" for table in range(self.features)]
        self._lengths = torch.ones(self.features * self.samples, dtype=torch.int32)
        self._offsets = torch.arange(self.features * self.samples + 1)
        self.make_collection()
        for table, weight in enumerate(self.weights):
            self.copy_first_rows(table, weight)

    def make_collection(self) -> None:
        """`collection` and the `weights` of its tables."""
        raise NotImplementedError

    def tables(self) -> list[Any]:
        """One config a feature."""
        import torchrec  # pyright: ignore[reportMissingImports]

        return [
            torchrec.EmbeddingBagConfig(
                name=f"table_{key}",
                embedding_dim=self.work.dim,
                num_embeddings=self.table_rows,
                feature_names=[key],
            )
            for key in self._keys
        ]

    def ids_of(self, batch: NDArray[np.int64]) -> Tensor:
        """Row numbers, feature after feature."""
        return self.in_tables(batch).view(-1)

    def logits(self, dense: Tensor, ids: Tensor) -> Tensor:
        """One call; the dense part takes its output as it is."""
        import torchrec  # pyright: ignore[reportMissingImports]

        jagged = torchrec.KeyedJaggedTensor(
            keys=self._keys, values=ids, lengths=self._lengths, offsets=self._offsets
        )
        return self.over(dense, self.collection(jagged).values())

    def row_values(self, table: int, numbers: NDArray[np.int64]) -> Tensor:
        """Straight from the weight."""
        return self.weights[table].detach()[torch.from_numpy(numbers)]


class FusedCollection(JaggedTraining):
    """Adagrad with one sum a value, as ours."""

    def make_collection(self) -> None:
        """The collection; Adagrad's sums are set, since it has no option for their start."""
        from torchrec.modules import (  # pyright: ignore[reportMissingImports]
            fused_embedding_modules as fused,
        )

        self.collection = fused.FusedEmbeddingBagCollection(
            tables=self.tables(),
            optimizer_type=torch.optim.Adagrad,
            optimizer_kwargs={"lr": self.work.rate, "eps": self.work.eps},
            device=torch.device("cpu"),
        )
        (module,) = (one._emb_module for one in self.collection._emb_modules)
        self.weights = module.split_embedding_weights()
        for (sums,) in module.split_optimizer_states():
            sums.fill_(self.work.accumulator)


class SparseCollection(JaggedTraining):
    """The collection has no option for sparse gradients, and dense ones would be as large as all
    its tables, in every step; its bags are told to make sparse ones.
    """

    def make_collection(self) -> None:
        """The collection and torch's optimizer."""
        import torchrec  # pyright: ignore[reportMissingImports]

        torch.sparse.check_sparse_tensor_invariants.disable()  # the default, said aloud: no warning
        self.collection = torchrec.EmbeddingBagCollection(
            tables=self.tables(), device=torch.device("cpu")
        )
        bags = list(self.collection.embedding_bags.values())
        for bag in bags:
            bag.sparse = True
        self.weights = [bag.weight for bag in bags]
        self.optimizers.append(self.adagrad(self.weights))


class RowwiseCollection(Pair):
    """A rank has a block of the rows of every table; each pools its part, and parts are summed."""

    program: ClassVar[tuple[str, str]] = ("peers.torchrec_training", "RowwiseCollection")
    packages: ClassVar[tuple[str, ...]] = ("torch", "torchrec", "fbgemm-gpu-cpu")

    def make_rows(self) -> None:
        """The sharded collection, with our first rows and Adagrad's first sums."""
        warnings.simplefilter("ignore")  # of torch, about names that TorchRec still calls
        self._keys = [f"f{table}" for table in range(self.features)]
        self._lengths = torch.ones(self.features * self.samples, dtype=torch.int32)
        self._offsets = torch.arange(self.features * self.samples + 1)
        self._collection = self._sharded()
        (lookup,) = self._collection._lookups
        (module,) = (one._emb_module for one in lookup._emb_modules)
        self._weights = module.split_embedding_weights()
        for (sums,) in module.split_optimizer_states():
            sums.fill_(self.work.accumulator)
        block = self._block()
        for table, weight in enumerate(self._weights):
            for start in range(0, len(weight), self.work.call_ids):
                stop = min(start + self.work.call_ids, len(weight))
                numbers = np.arange(start, stop) + table * self.table_rows + self.rank * block
                weight.data[start:stop] = torch.from_numpy(self.work.first_rows_of(numbers))
        self._dense = DistributedDataParallel(self.over)

    def _sharded(self) -> Any:
        import torchrec  # pyright: ignore[reportMissingImports]
        from fbgemm_gpu.split_embedding_configs import (  # pyright: ignore[reportMissingImports]
            EmbOptimType,
        )
        from torchrec.distributed import (  # pyright: ignore[reportMissingImports]
            embeddingbag,
            sharding_plan,
            types,
        )

        tables = [
            torchrec.EmbeddingBagConfig(
                name=f"table_{key}",
                embedding_dim=self.work.dim,
                num_embeddings=self.table_rows,
                feature_names=[key],
            )
            for key in self._keys
        ]
        plain = torchrec.EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
        sharder = embeddingbag.EmbeddingBagCollectionSharder(
            fused_params={
                "optimizer": EmbOptimType.EXACT_ADAGRAD,
                "learning_rate": self.work.rate,
                "eps": self.work.eps,
            }
        )
        plan = sharding_plan.construct_module_sharding_plan(
            plain,
            {table.name: sharding_plan.row_wise(compute_kernel="fused") for table in tables},
            sharder=sharder,
            local_size=RANKS,
            world_size=RANKS,
            device_type="cpu",
        )
        world = dist.group.WORLD
        assert world is not None
        env = types.ShardingEnv.from_process_group(world)
        return sharder.shard(plain, plan, env, torch.device("cpu"))

    def ids_of(self, batch: NDArray[np.int64]) -> Tensor:
        """Row numbers of each table, feature after feature."""
        return self.in_tables(batch).view(-1)

    def logits(self, dense: Tensor, ids: Tensor) -> Tensor:
        """One call of the collection."""
        import torchrec  # pyright: ignore[reportMissingImports]

        jagged = torchrec.KeyedJaggedTensor(
            keys=self._keys, values=ids, lengths=self._lengths, offsets=self._offsets
        )
        return self._dense(dense, self._collection(jagged).wait().values())

    def own_row_values(self, table: int, numbers: NDArray[np.int64]) -> Tensor:
        """Straight from the block."""
        own = torch.from_numpy(numbers) - self.rank * self._block()
        weight = self._weights[table].detach()
        mine = (own >= 0) & (own < len(weight))
        return weight[own.clamp(0, len(weight) - 1)] * mine.unsqueeze(1)

    def _block(self) -> int:
        return -(-self.table_rows // RANKS)


if __name__ == "__main__":
    serve(FusedCollection, SparseCollection, RowwiseCollection)
