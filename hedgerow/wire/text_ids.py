"""Strings of requests as ids, by the rule of `hr.id64`."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .. import native
from ..core.hashing import field_seed
from .buffers import Array


def ids_of_text(strings: Array, field: str) -> Tensor:
    """`hr.id64(value, field)` of every value of an array of str or bytes, in its shape.

    >>> ids_of_text(np.array(["Zürich"], dtype=object), "city")
    tensor([795450140219139997])
    """
    flat = [one.encode() if isinstance(one, str) else one for one in strings.ravel().tolist()]
    out = np.empty(len(flat), np.uint64)
    if flat:
        data = np.frombuffer(b"".join(flat) or b"\0", np.uint8)
        offsets = np.zeros(len(flat) + 1, np.int64)
        np.cumsum([len(one) for one in flat], out=offsets[1:])
        seed = field_seed(field)
        native.hash_strings(data.ctypes.data, offsets.ctypes.data, len(out), seed, out.ctypes.data)
    return torch.from_numpy(out.view(np.int64)).reshape(strings.shape)
