"""Common to the peers of TorchRec that train: tables, and bags of one id as jagged tensors."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .training import Training


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
