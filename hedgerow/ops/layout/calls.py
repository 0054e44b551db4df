"""Looked-up vectors straight into a model's dense inputs: the public functions of layouts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...core.errors import DtypeError, InputError
from ...core.shapes import Int64
from ..arguments import typed
from .config import FeatureConfigs, by_name
from .registered import embedding_to_layout, embedding_to_layout_backward

Counts = Tensor | Sequence[int]  # a few whole numbers


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
    """The tensors of all layouts, by name; differentiable in `embeddings`.

    `embeddings` are the vectors of each table and shard, as a list by table, then shard; or all in
    one flat tensor by shard, then table, cut by `emb_lengths`. The index tensors are `shard_fids`'.

    >>> from hedgerow.ops.layout import Feature, FeatureConfigs, OutConfig, Slice, shard_fids
    >>> from hedgerow.core.ids import Ragged
    >>> config = FeatureConfigs(
    ...     {"f": Feature("t", "SUM", (2,))}, {"out": OutConfig("NONE", (Slice("f", 0, 2),))}
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
    return embedding_to_layout(
        _flat(embeddings, emb_lengths is not None),
        fid_offset,
        feature_offset,
        nfl_offset,
        [_one("batch_size", batch_size)],
        None,
        None if emb_lengths is None else _counts("emb_lengths", emb_lengths),
        _text(config),
        num_shards,
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
    """`fused_embedding_to_layout` of several requests, whose tensors come one behind the other.

    Each request's indices count from its own start. `batch_size`, `nfl_size`, `feature_size` and
    `fid_size` have a number a request, `emb_size` one a request and list. Outputs are joined along
    dimension 0. To compile a program, pass `batch_size` as a list: the outputs' sizes depend on it.
    """
    sizes = [
        _counts(name, one)
        for name, one in (
            ("nfl_size", nfl_size),
            ("feature_size", feature_size),
            ("fid_size", fid_size),
        )
    ]
    rows = batch_size.tolist() if isinstance(batch_size, Tensor) else list(batch_size)
    if any(one.shape[0] != len(rows) for one in sizes):
        raise InputError(
            f"nfl_size, feature_size, fid_size have {[one.shape[0] for one in sizes]} entries; "
            f"batch_size has {len(rows)}: one a request."
        )
    return embedding_to_layout(
        _flat(embeddings, False),
        fid_offset,
        feature_offset,
        nfl_offset,
        rows,
        torch.stack(sizes),
        _counts("emb_size", emb_size),
        _text(config),
        num_shards,
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
    """The gradient of `embeddings`, one tensor for each; of a flat tensor, a list of one.

    Of `embeddings` only shapes matter. The scale multiplies every incoming gradient.
    """
    lists = _flat(embeddings, emb_lengths is not None)
    if not config.outs:  # nothing came in, so nothing says of which type it was
        return [torch.zeros_like(one) for one in lists]
    scale = layout_tensors_grad_scale
    if scale is not None:
        scale = torch.as_tensor(scale, dtype=None if isinstance(scale, Tensor) else torch.float64)
        if scale.numel() != 1:
            raise InputError(
                f"layout_tensors_grad_scale has shape {tuple(scale.shape)}; it is one number."
            )
        scale = scale.reshape(())
    grads = embedding_to_layout_backward(
        list(layout_tensors_grad),
        scale,
        [one.shape[0] for one in lists],
        fid_offset,
        feature_offset,
        nfl_offset,
        [_one("batch_size", batch_size)],
        None,
        None if emb_lengths is None else _counts("emb_lengths", emb_lengths),
        _text(config),
        num_shards,
        validate,
    )
    given = [embeddings] if isinstance(embeddings, Tensor) else embeddings
    return [grad.view(one.shape) for grad, one in zip(grads, given, strict=True)]


def nest_layout(
    tensors: Sequence[Tensor], config: FeatureConfigs
) -> dict[str, Tensor | list[Tensor]]:
    """The tensors of layouts by name: one tensor, or a list of them where the type is NONE.

    >>> from hedgerow.ops.layout import Feature, OutConfig, Slice
    >>> config = FeatureConfigs(
    ...     {"f": Feature("t", "SUM", (2,))}, {"out": OutConfig("ADDN", (Slice("f", 0, 2),))}
    ... )
    >>> nest_layout([torch.zeros(1, 2)], config)
    {'out': tensor([[0., 0.]])}
    """
    nested: dict[str, Tensor | list[Tensor]] = {}
    left = list(tensors)
    wanted = sum(len(out.sizes(config.features)) for out in config.outs.values())
    if len(left) != wanted:
        raise InputError(f"there are {len(left)} tensors; the layouts have {wanted}.")
    for name in by_name(config.outs):
        count = len(config.outs[name].sizes(config.features))
        mine, left = left[:count], left[count:]
        nested[name] = mine if config.outs[name].out_type == "NONE" else mine[0]
    return nested


def _text(config: FeatureConfigs) -> str:
    if not isinstance(config, FeatureConfigs):
        raise DtypeError(f"config is a {type(config).__name__}; pass a FeatureConfigs.")
    return config.text


def _flat(embeddings: Sequence[Tensor] | Tensor, cut: bool) -> list[Tensor]:
    """Every list of vectors as one row of values; rows of vectors lie so anyway."""
    if isinstance(embeddings, Tensor):
        if not cut:
            raise InputError("embeddings is one tensor; pass emb_lengths, which cut it, or a list.")
        embeddings = [embeddings]
    for i, one in enumerate(embeddings):
        if not isinstance(one, Tensor):
            raise DtypeError(f"embeddings[{i}] is a {type(one).__name__}; pass torch.Tensors.")
    return [one if one.dim() == 1 else one.reshape(-1) for one in embeddings]


def _one(name: str, value: int | Tensor) -> int:
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.is_floating_point():
            raise InputError(f"{name} has shape {tuple(value.shape)}; it is one whole number.")
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | torch.SymInt):
        raise DtypeError(f"{name} is {value!r}; it must be an int.")
    return value


def _counts(name: str, values: Counts) -> Int64[Tensor, "n"]:
    whole = (torch.int64, torch.int32)
    found = values if isinstance(values, Tensor) else torch.tensor(values, dtype=torch.int64)
    return typed(name, found.reshape(-1), whole, (None,)).to(torch.int64)
