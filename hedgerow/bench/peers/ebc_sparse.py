"""DLRM on TorchRec's EmbeddingBagCollection with sparse gradients and torch's Adagrad."""

from __future__ import annotations

import torch

from .jagged_training import JaggedTraining
from .serve import serve


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


if __name__ == "__main__":
    serve(SparseCollection)
