"""TorchRec's managed collision: real ids remapped to a dense table by a sorted list of ids."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from .serve import serve
from .torch_rows import TorchRows


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
    serve(ManagedCollision)
