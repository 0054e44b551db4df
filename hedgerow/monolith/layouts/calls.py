"""The functions of layouts: vectors to dense inputs, and gradients back, in five versions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ...core.errors import DtypeError, InputError
from ...core.shapes import Int64
from ...ops import arguments
from .config import FeatureConfigs, by_name, text_of
from .inputs import to_element_encoding
from .operators import embedding_to_layout, embedding_to_layout_backward

Counts = Tensor | Sequence[int]  # a few integers


def fused_embedding_to_layout(
    embeddings: Sequence[Tensor] | Tensor,
    config: FeatureConfigs,
    *,
    fid_offset: Int64[Tensor, "ids"],
    feature_offset: Int64[Tensor, "entries+1"],
    nfl_offset: Int64[Tensor, "features+1"],
    batch_size: int | Tensor,
    num_shards: int,
    emb_lengths: Counts | None = None,
    validate: bool = False,
) -> list[Tensor]:
    """Returns the tensors of all layouts, sorted by layout name. Differentiable in `embeddings`.

    `embeddings` holds the vectors of each table and shard: a list ordered by table, then shard; or
    one flat tensor ordered by shard, then table, with `emb_lengths`. `shard_fids` returns the index
    tensors.

    >>> from hedgerow.monolith.layouts import FeatureConfigs, LayoutFeature, OutConfig, Slice
    >>> from hedgerow.monolith.layouts import shard_fids
    >>> from hedgerow.core.ids import Ragged
    >>> config = FeatureConfigs(
    ...     {"f": LayoutFeature("t", "SUM", (2,))}, {"out": OutConfig("NONE", (Slice("f", 0, 2),))}
    ... )
    >>> rows = Ragged.from_lists([[7, 8], [7]])
    >>> ids = shard_fids({"f": (False, rows)}, 2, 1, config, unique=True)
    >>> vectors = torch.tensor([1.0, 2.0, 10.0, 20.0])  # of 7 and 8
    >>> fused_embedding_to_layout(
    ...     [vectors], config, fid_offset=ids.fid_offset, feature_offset=ids.feature_offset,
    ...     nfl_offset=ids.nfl_offset, batch_size=2, num_shards=1,
    ... )
    [tensor([[11., 22.],
            [ 1.,  2.]])]
    """
    index = (fid_offset, feature_offset, nfl_offset)
    return embedding_to_layout(
        _flat(embeddings, emb_lengths is not None, index),
        *index,
        [arguments.whole("batch_size", batch_size)],
        None,
        None if emb_lengths is None else _counts("emb_lengths", emb_lengths, fid_offset),
        text_of(config),
        arguments.whole("num_shards", num_shards),
        validate,
    )


def fused_embedding_to_layout_requests(
    embeddings: Sequence[Tensor],
    config: FeatureConfigs,
    *,
    fid_offset: Int64[Tensor, "ids"],
    feature_offset: Int64[Tensor, "entries+1"],
    nfl_offset: Int64[Tensor, "features+1"],
    batch_size: Counts,
    nfl_size: Counts,
    feature_size: Counts,
    fid_size: Counts,
    emb_size: Counts,
    num_shards: int,
    validate: bool = False,
) -> list[Tensor]:
    """Like `fused_embedding_to_layout`, for several requests whose tensors are concatenated.

    Each request's indices count from its own start. `batch_size`, `nfl_size`, `feature_size` and
    `fid_size` have one number per request, `emb_size` one per request and list. Outputs are
    concatenated along dimension 0. In a compiled program pass `batch_size` as a list, because
    output sizes depend on it.
    """
    index = (fid_offset, feature_offset, nfl_offset)
    lists = _flat(embeddings, False, index)
    sizes = [
        _counts(name, one, fid_offset)
        for name, one in (
            ("nfl_size", nfl_size),
            ("feature_size", feature_size),
            ("fid_size", fid_size),
        )
    ]
    rows = arguments.wholes("batch_size", batch_size)
    if any(one.shape[0] != len(rows) for one in sizes):
        raise InputError(
            f"nfl_size, feature_size, fid_size have {[one.shape[0] for one in sizes]} entries; "
            f"batch_size has {len(rows)}: one per request."
        )
    return embedding_to_layout(
        lists,
        *index,
        rows,
        torch.stack(sizes),
        _counts("emb_size", emb_size, fid_offset),
        text_of(config),
        arguments.whole("num_shards", num_shards),
        validate,
    )


def fused_embedding_to_layout_grad(
    embeddings: Sequence[Tensor] | Tensor,
    config: FeatureConfigs,
    *,
    fid_offset: Int64[Tensor, "ids"],
    feature_offset: Int64[Tensor, "entries+1"],
    nfl_offset: Int64[Tensor, "features+1"],
    batch_size: int | Tensor,
    num_shards: int,
    layout_tensors_grad: Sequence[Tensor],
    layout_tensors_grad_scale: float | Tensor | None = None,
    emb_lengths: Counts | None = None,
    validate: bool = False,
) -> list[Tensor]:
    """Returns the gradient of each of `embeddings`; for a flat tensor, a list of one.

    Only the shapes of `embeddings` matter. The scale multiplies every incoming gradient.
    """
    index = (fid_offset, feature_offset, nfl_offset)
    lists = _flat(embeddings, emb_lengths is not None, index)
    rest = (
        *index,
        [arguments.whole("batch_size", batch_size)],
        None,
        None if emb_lengths is None else _counts("emb_lengths", emb_lengths, fid_offset),
        text_of(config),
        arguments.whole("num_shards", num_shards),
        validate,
    )
    received = arguments.tensors("layout_tensors_grad", layout_tensors_grad)
    arguments.beside("fid_offset", fid_offset, "layout_tensors_grad", received)
    scale = _scale(layout_tensors_grad_scale, fid_offset)
    shapes = [embeddings.shape] if isinstance(embeddings, Tensor) else [e.shape for e in embeddings]
    if not config.outs and not received:  # the dtype of the result would be unknown
        embedding_to_layout([one.detach() for one in lists], *rest)  # only to run its checks
        return [one.new_zeros(shape) for one, shape in zip(lists, shapes, strict=True)]
    grads = embedding_to_layout_backward(received, scale, [len(one) for one in lists], *rest)
    return [grad.view(shape) for grad, shape in zip(grads, shapes, strict=True)]


def nest_layout(
    tensors: Sequence[Tensor], config: FeatureConfigs
) -> dict[str, Tensor | list[Tensor]]:
    """Returns the tensors of layouts by name: one tensor, or a list for a layout of type NONE.

    >>> from hedgerow.monolith.layouts import LayoutFeature, OutConfig, Slice
    >>> config = FeatureConfigs(
    ...     {"f": LayoutFeature("t", "SUM", (2,))}, {"out": OutConfig("ADDN", (Slice("f", 0, 2),))}
    ... )
    >>> nest_layout([torch.zeros(1, 2)], config)
    {'out': tensor([[0., 0.]])}
    """
    nested: dict[str, Tensor | list[Tensor]] = {}
    left = arguments.tensors("tensors", tensors)
    text_of(config)
    wanted = sum(len(out.sizes(config.features)) for out in config.outs.values())
    if len(left) != wanted:
        raise InputError(f"there are {len(left)} tensors; the layouts have {wanted}.")
    for name in by_name(config.outs):
        count = len(config.outs[name].sizes(config.features))
        mine, left = left[:count], left[count:]
        nested[name] = mine if config.outs[name].out_type == "NONE" else mine[0]
    return nested


def _flat(
    embeddings: Sequence[Tensor] | Tensor, cut: bool, index: tuple[Tensor, Tensor, Tensor]
) -> list[Tensor]:
    """Returns every list of vectors as a flat tensor.

    Raises unless all are on the index tensors' device.

    torch would pick one of several devices, and its errors are not ValueErrors.
    """
    if isinstance(embeddings, Tensor):
        if not cut:
            raise InputError("embeddings is one tensor; pass emb_lengths, which cut it, or a list.")
        embeddings = [embeddings]
    lists = arguments.tensors("embeddings", embeddings)
    for name, one in zip(("fid_offset", "feature_offset", "nfl_offset"), index, strict=True):
        arguments.tensor(name, one)
        arguments.together("fid_offset", index[0], name, one)
    arguments.beside("fid_offset", index[0], "embeddings", lists)
    return [one if one.dim() == 1 else one.reshape(-1) for one in lists]


def _counts(name: str, values: Counts, index: Tensor) -> Int64[Tensor, "n"]:
    if not isinstance(values, Tensor):
        return torch.tensor(arguments.wholes(name, values), dtype=torch.int64)
    arguments.reachable("fid_offset", index, name, values)
    return arguments.typed(name, values.reshape(-1), arguments.WHOLE, (None,)).to(torch.int64)


def _scale(value: float | Tensor | None, index: Tensor) -> Tensor | None:
    if value is None:
        return None
    name = "layout_tensors_grad_scale"
    if not isinstance(value, Tensor):
        if isinstance(value, bool) or not isinstance(value, int | float | np.number):
            raise DtypeError(f"{name} is {value!r}; it must be one number.")
        return torch.tensor(value, dtype=torch.float64)
    if value.numel() != 1 or value.dtype not in (*arguments.FLOATS, *arguments.WHOLE):
        raise InputError(
            f"{name} is a tensor of {value.dtype} and shape {tuple(value.shape)}; it is one number."
        )
    arguments.reachable("fid_offset", index, name, value)
    return value.reshape(())


def fused_embedding_to_layout_versioned(
    embeddings: Sequence[Tensor] | Tensor,
    config: FeatureConfigs,
    *,
    version: int,
    fid_offset: Tensor,
    feature_offset: Tensor,
    nfl_offset: Tensor,
    batch_size: int | Counts,
    num_shards: int,
    fid_list_row_splits: Sequence[Tensor] | None = None,
    emb_lengths: Counts | None = None,
    request_sizes: tuple[Counts, Counts, Counts, Counts] | None = None,
) -> list[Tensor]:
    """Like `fused_embedding_to_layout`, with the input format of a version from 1 to 5.

    Version 2 needs `fid_list_row_splits` and version 4 `emb_lengths`. Version 5 takes several
    requests with `request_sizes`: nfl_size, feature_size, fid_size, emb_size.
    """
    words = to_element_encoding(fid_offset, version, config, num_shards, fid_list_row_splits)
    if version == 5 and request_sizes is not None:
        nfl_size, feature_size, fid_size, emb_size = request_sizes
        return fused_embedding_to_layout_requests(
            _lists(embeddings),
            config,
            fid_offset=words,
            feature_offset=feature_offset,
            nfl_offset=nfl_offset,
            batch_size=_several(batch_size),
            nfl_size=nfl_size,
            feature_size=feature_size,
            fid_size=fid_size,
            emb_size=emb_size,
            num_shards=num_shards,
        )
    return fused_embedding_to_layout(
        embeddings,
        config,
        fid_offset=words,
        feature_offset=feature_offset,
        nfl_offset=nfl_offset,
        batch_size=_single(batch_size),
        num_shards=num_shards,
        emb_lengths=_cut(version, emb_lengths),
    )


def fused_embedding_to_layout_grad_versioned(
    embeddings: Sequence[Tensor] | Tensor,
    config: FeatureConfigs,
    *,
    version: int,
    fid_offset: Tensor,
    feature_offset: Tensor,
    nfl_offset: Tensor,
    batch_size: int | Counts,
    num_shards: int,
    layout_tensors_grad: Sequence[Tensor],
    layout_tensors_grad_scale: float | Tensor | None = None,
    fid_list_row_splits: Sequence[Tensor] | None = None,
    emb_lengths: Counts | None = None,
) -> list[Tensor]:
    """Like `fused_embedding_to_layout_grad`, with a version's input format, for one request."""
    words = to_element_encoding(fid_offset, version, config, num_shards, fid_list_row_splits)
    return fused_embedding_to_layout_grad(
        embeddings,
        config,
        fid_offset=words,
        feature_offset=feature_offset,
        nfl_offset=nfl_offset,
        batch_size=_single(batch_size),
        num_shards=num_shards,
        layout_tensors_grad=layout_tensors_grad,
        layout_tensors_grad_scale=layout_tensors_grad_scale,
        emb_lengths=_cut(version, emb_lengths),
    )


def _cut(version: int, emb_lengths: Counts | None) -> Counts | None:
    """Returns `emb_lengths` for version 4, which has one flat tensor. Other versions ignore it."""
    if version == 4 and emb_lengths is None:
        raise InputError("version 4 needs emb_lengths, which cut its flat tensor.")
    return emb_lengths if version == 4 else None


def _lists(embeddings: Sequence[Tensor] | Tensor) -> Sequence[Tensor]:
    if isinstance(embeddings, Tensor):
        raise InputError("embeddings is one tensor; version 5 takes a list by table and shard.")
    return embeddings


def _several(batch_size: int | Counts) -> Counts:
    return [batch_size] if isinstance(batch_size, int | np.integer) else batch_size


def _single(batch_size: int | Counts) -> int | Tensor:
    if isinstance(batch_size, int | np.integer | torch.SymInt | Tensor):
        return batch_size
    batch_size = arguments.listed("batch_size", batch_size)
    if len(batch_size) != 1:
        raise InputError(
            f"batch_size has {len(batch_size)} entries; several requests need nfl_size, "
            f"feature_size, fid_size and emb_size, and their gradient is taken by autograd."
        )
    return batch_size[0]
