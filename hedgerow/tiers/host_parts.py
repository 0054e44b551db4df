"""Parts of tensors: in host memory by numpy, since torch wakes its threads for each and waits."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core import checks
from ..core.shapes import Int64


def some_of(values: Tensor, which: Int64[Tensor, "m"]) -> Tensor:
    """Those at places `which`, all different and in order; no copy if that is all of them.

    >>> some_of(torch.tensor([5, 6, 7]), torch.tensor([0, 2])).tolist()
    [5, 7]
    """
    if len(which) == len(values):
        return values
    if values.device == checks.CPU:
        return torch.from_numpy(values.numpy().take(which.numpy(), 0))
    return values[which.to(values.device)]


def put_some(values: Tensor, which: Int64[Tensor, "m"], new: Tensor) -> None:
    """Sets those at places `which`, wherever the new ones are.

    >>> values = torch.tensor([5, 6, 7])
    >>> put_some(values, torch.tensor([0, 2]), torch.tensor([1, 2]))
    >>> values.tolist()
    [1, 6, 2]
    """
    if values.device == checks.CPU:
        values.numpy()[which.numpy()] = new.cpu().numpy()
    else:
        values[which.to(values.device)] = new.to(values.device)
