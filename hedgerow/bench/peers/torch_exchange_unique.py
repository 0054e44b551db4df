"""The same exchange by hand, with equal ids removed by `torch.unique` before they travel."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from .serve import serve
from .torch_exchange import TorchExchange


class TorchExchangeUnique(TorchExchange):
    """Rows travel once, and their summed gradients once."""

    program: ClassVar[tuple[str, str]] = ("peers.torch_exchange_unique", "TorchExchangeUnique")

    def vectors(self, ids: Tensor) -> Tensor:
        """The row of every id, from those of the distinct ones."""
        distinct, which = ids.unique(return_inverse=True)
        return super().vectors(distinct).index_select(0, which)


if __name__ == "__main__":
    serve(TorchExchangeUnique)
