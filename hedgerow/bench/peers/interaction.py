"""The dense part of DLRM for peers, which cannot import ours; the same layers in the same order."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters


class PeerInteraction(nn.Module):
    """A bottom of one hidden layer, products of all pairs of vectors, and one linear layer."""

    pairs: Tensor

    def __init__(self, features: int, dense: int, dim: int, hidden: int) -> None:
        super().__init__()
        vectors = features + 1
        self.bottom = nn.Sequential(
            nn.Linear(dense, hidden), nn.ReLU(), nn.Linear(hidden, dim), nn.ReLU()
        )
        self.top = nn.Linear(dim + vectors * (vectors - 1) // 2, 1)
        i, j = torch.triu_indices(vectors, vectors, offset=1)
        self.register_buffer("pairs", i * vectors + j, persistent=False)

    def forward(self, dense: Tensor, vectors: list[Tensor] | Tensor) -> Tensor:
        """One logit a sample; vectors are one tensor a feature, or all as [samples, all floats]."""
        x = self.bottom(dense)
        if isinstance(vectors, Tensor):
            of_features = vectors.view(len(x), -1, x.shape[1])
            v = torch.cat([x.unsqueeze(1), of_features], dim=1)
        else:
            v = torch.stack([x, *vectors], dim=1)
        products = (v @ v.mT).flatten(1).index_select(1, self.pairs)
        return self.top(torch.cat([x, products], dim=1)).squeeze(1)


def set_weights(module: nn.Module, flat: NDArray[np.float32]) -> None:
    """Gives all parameters of a module their values, in the order of `parameters()`."""
    vector_to_parameters(torch.from_numpy(np.array(flat)), module.parameters())


def weights_of(module: nn.Module) -> NDArray[np.float32]:
    """The same values back.

    >>> module = nn.Linear(1, 1)
    >>> set_weights(module, np.array([2.0, 3.0], np.float32))
    >>> weights_of(module).tolist()
    [2.0, 3.0]
    """
    return parameters_to_vector(module.parameters()).detach().numpy()
