"""The dense part of DLRM for peers, which cannot import ours; the same layers in the same order."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters


class PeerInteraction(nn.Module):
    """A bottom of one hidden layer, products of all pairs of vectors, and one linear layer."""

    pairs: Tensor
    columns: Tensor

    def __init__(self, features: int, dense: int, dim: int, hidden: int) -> None:
        super().__init__()
        vectors = features + 1
        self.bottom = nn.Sequential(
            nn.Linear(dense, hidden), nn.ReLU(), nn.Linear(hidden, dim), nn.ReLU()
        )
        self.top = nn.Linear(dim + vectors * (vectors - 1) // 2, 1)
        i, j = torch.triu_indices(vectors, vectors, offset=1)
        columns = torch.full((vectors, vectors), len(i))
        columns[i, j] = columns[j, i] = torch.arange(len(i))
        self.register_buffer("pairs", i * vectors + j, persistent=False)
        self.register_buffer("columns", columns.flatten(), persistent=False)

    def forward(self, dense: Tensor, vectors: list[Tensor] | Tensor) -> Tensor:
        """One logit a sample; vectors are one tensor a feature, or all as [samples, all floats]."""
        x = self.bottom(dense)
        if isinstance(vectors, Tensor):
            of_features = vectors.view(len(x), -1, x.shape[1])
            v = torch.cat([x.unsqueeze(1), of_features], dim=1)
        else:
            v = torch.stack([x, *vectors], dim=1)
        products: Any = _Products.apply(v, self.pairs, self.columns)
        return self.top(torch.cat([x, products], dim=1)).squeeze(1)


class _Products(torch.autograd.Function):
    """Products of pairs with one product of matrices in backward, as `hr.models` has it."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, pairs: Tensor, columns: Tensor) -> Tensor:
        """Products of the pairs."""
        ctx.save_for_backward(v, columns)
        return (v @ v.mT).flatten(1).index_select(1, pairs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        """The gradient of the vectors; each pair stands twice in `every`."""
        v, columns = ctx.saved_tensors
        every = nn.functional.pad(grads[0], (0, 1)).index_select(1, columns)
        return every.view(len(v), v.shape[1], v.shape[1]) @ v, None, None


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
