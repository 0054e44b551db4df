"""TorchRec's EmbeddingBagCollection: a dense table behind jagged tensors."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from .serve import serve
from .torch_rows import TorchRows


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


if __name__ == "__main__":
    serve(BagCollection)
