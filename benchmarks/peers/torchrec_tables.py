"""Tables of FBGEMM and TorchRec: TBE, EmbeddingBagCollection and managed collision."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from .subject import serve
from .torch_tables import TorchRows


class TableBatched(TorchRows):
    """Timed: forward without pooling (offsets 0, 1, 2, ...); for updates also backward from the
    given gradient, which takes the optimizer's step. Its Adagrad has one sum a value, as ours.
    """

    packages: ClassVar[tuple[str, ...]] = ("torch", "fbgemm-gpu-cpu")

    def fill(self) -> None:
        """The module; Adagrad's sums are set, since it has no option for their start."""
        self._module = self._make_module()
        self.weight = self._module.split_embedding_weights()[0]
        self.copy_first_rows(self.weight)
        if self.optimizer == "adagrad":
            self._module.split_optimizer_states()[0][0].fill_(self.work.accumulator)

    def _make_module(self) -> Any:
        from fbgemm_gpu import (  # pyright: ignore[reportMissingImports]
            split_table_batched_embeddings_ops_training as tbe,
        )

        host, cpu = tbe.EmbeddingLocation.HOST, tbe.ComputeDevice.CPU
        adagrad = self.optimizer == "adagrad"
        return tbe.SplitTableBatchedEmbeddingBagsCodegen(
            embedding_specs=[(self.work.rows, self.work.dim, host, cpu)],
            optimizer=tbe.OptimType.EXACT_ADAGRAD if adagrad else tbe.OptimType.EXACT_SGD,
            learning_rate=self.work.rate,
            eps=self.work.eps,
            pooling_mode=tbe.PoolingMode.NONE,
        )

    def place(self, access: str) -> None:
        """One id a bag."""
        super().place(access)
        self._offsets = torch.arange(len(self.batches[0]) + 1)

    def lookup(self, batch: int, output: str) -> Tensor:
        """Fresh output only."""
        with torch.no_grad():
            return self._module(self.batches[batch], self._offsets)

    def update(self, batch: int, output: str) -> Tensor:
        """Fresh output only."""
        rows = self._module(self.batches[batch], self._offsets)
        rows.backward(self.gradients)
        return rows


class BagCollection(TorchRows):
    """Timed: the collection's call on a KeyedJaggedTensor of bags of one id, summed, and
    `values()` of the result; no autograd. Making the jagged tensor is not timed.
    """

    packages: ClassVar[tuple[str, ...]] = ("torch", "torchrec", "fbgemm-gpu-cpu")

    def fill(self) -> None:
        """The collection of one table."""
        import torchrec  # pyright: ignore[reportMissingImports]

        table = torchrec.EmbeddingBagConfig(
            name="table",
            embedding_dim=self.work.dim,
            num_embeddings=self.work.rows,
            feature_names=["id"],
        )
        self._module = torchrec.EmbeddingBagCollection(tables=[table], device=torch.device("cpu"))
        self.weight = self._module.embedding_bags["table"].weight
        self.copy_first_rows(self.weight)

    def place(self, access: str) -> None:
        """Bags of one id."""
        import torchrec  # pyright: ignore[reportMissingImports]

        super().place(access)
        lengths = torch.ones(len(self.batches[0]), dtype=torch.int32)
        self._jagged = [
            torchrec.KeyedJaggedTensor(keys=["id"], values=numbers, lengths=lengths)
            for numbers in self.batches
        ]

    def lookup(self, batch: int, output: str) -> Tensor:
        """Fresh output only."""
        with torch.no_grad():
            return self._module(self._jagged[batch]).values()


class ManagedCollision(TorchRows):
    """Takes real ids. Timed: the call of ManagedCollisionEmbeddingCollection over
    MCHManagedCollisionModule in eval mode, where it only remaps (a binary search an id) and reads:
    its cheapest steady state, and a pure read as ours. In training mode it would also record every
    id and sort now and then. Its sorted ids are set directly, as loading a checkpoint does.
    """

    packages: ClassVar[tuple[str, ...]] = ("torch", "torchrec", "fbgemm-gpu-cpu")

    def fill(self) -> None:
        """One slot more than rows: the module keeps the last for ids it does not know."""
        import torchrec  # pyright: ignore[reportMissingImports]
        from torchrec.modules import (  # pyright: ignore[reportMissingImports]
            mc_embedding_modules,
            mc_modules,
        )

        cpu, slots = torch.device("cpu"), self.work.rows + 1
        config = torchrec.EmbeddingConfig(
            name="table",
            embedding_dim=self.work.dim,
            num_embeddings=slots,
            feature_names=["id"],
        )
        embeddings = torchrec.EmbeddingCollection(tables=[config], device=cpu)
        remap = mc_modules.MCHManagedCollisionModule(
            zch_size=slots,
            device=cpu,
            eviction_policy=mc_modules.DistanceLFU_EvictionPolicy(),
            eviction_interval=2**31,
        )
        ids, numbers = torch.from_numpy(np.array(self.work.ids())).sort()
        remap._mch_sorted_raw_ids[:-1] = ids
        remap._mch_remapped_ids_mapping[:-1] = numbers
        collisions = mc_modules.ManagedCollisionCollection({"table": remap}, [config])
        self._module = mc_embedding_modules.ManagedCollisionEmbeddingCollection(
            embeddings, collisions
        ).eval()
        self.weight = embeddings.embeddings["table"].weight
        self.copy_first_rows(self.weight)

    def place(self, access: str) -> None:
        """Real ids, one a bag."""
        import torchrec  # pyright: ignore[reportMissingImports]

        super().place(access)
        ids = torch.from_numpy(np.array(self.work.ids()))
        lengths = torch.ones(len(self.batches[0]), dtype=torch.int32)
        self._jagged = [
            torchrec.KeyedJaggedTensor(keys=["id"], values=ids[numbers], lengths=lengths)
            for numbers in self.batches
        ]

    def lookup(self, batch: int, output: str) -> Tensor:
        """Fresh output only."""
        with torch.no_grad():
            rows, _ = self._module(self._jagged[batch])
        return rows["id"].values()


if __name__ == "__main__":
    serve(TableBatched, BagCollection, ManagedCollision)
