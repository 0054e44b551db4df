"""DLRM on TorchRec's FusedEmbeddingBagCollection: FBGEMM steps the rows within backward."""

from __future__ import annotations

import torch

from .jagged_training import JaggedTraining
from .serve import serve


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


if __name__ == "__main__":
    serve(FusedCollection)
