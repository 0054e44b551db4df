"""Layouts done by hand: dumb loops over rows and ids that the ops are compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hedgerow.core.ids import Ragged
from hedgerow.monolith.layouts import FeatureConfigs, ShardedFids
from hedgerow.monolith.layouts.config import by_name

Features = dict[str, tuple[bool, Ragged]]


def feature_of_each_id(nfl: Sequence[int], offsets: Sequence[int]) -> list[int]:
    """The feature of each word, from the borders of the index tensors."""
    found: list[int] = []
    entries = len(offsets) - 1
    for q in range(len(nfl) - 1):
        begin, end = (min(word & 0x7FFFFFFF, entries) for word in nfl[q : q + 2])
        found += [q] * (offsets[end] - offsets[begin])
    return found


def older_words(
    fid_offset: Tensor,
    nfl_offset: Tensor,
    feature_offset: Tensor,
    fid_list_row_splits: Sequence[Tensor],
    config: FeatureConfigs,
    shards: int,
    version: int,
) -> Tensor:
    """Words of version 1 or 2 for the same vectors."""
    features = [config.features[name] for name in config.names]
    tables = [config.tables.index(one.table) for one in features]
    owners = feature_of_each_id(nfl_offset.tolist(), feature_offset.tolist())
    words = []
    for word, q in zip(fid_offset.tolist(), owners, strict=True):
        number, value = word >> 32, word & 0xFFFFFFFF
        table, shard = divmod(number, shards)
        assert table == tables[q]
        if version == 1:
            words.append(number << 32 | value // features[q].width)
            continue
        mine = [other for other in range(len(features)) if tables[other] == table]
        splits, start = fid_list_row_splits[number].tolist(), 0
        for place, other in enumerate(mine):
            if other == q:
                break
            start += (splits[place + 1] - splits[place]) * features[other].width
        base = shards * sum(1 for one in tables if one < table)
        part = base + shard * len(mine) + mine.index(q)
        words.append(part << 32 | (value - start) // features[q].width)
    return torch.tensor(words, dtype=torch.int64)


def one_width_a_table(config: FeatureConfigs) -> bool:
    """Whether version 1 can write it."""
    widths: dict[str, set[int]] = {}
    for one in config.features.values():
        widths.setdefault(one.table, set()).add(one.width)
    return all(len(found) == 1 for found in widths.values())


def layout_by_hand(
    config: FeatureConfigs,
    features: Features,
    batch_size: int,
    vector: Callable[[str, int], Tensor],
) -> list[Tensor]:
    """The outputs, from `vector(feature, id)`; differentiable if that is."""
    rows = {name: _rows(features.get(name), batch_size) for name in config.features}
    outputs: list[Tensor] = []
    for name in by_name(config.outs):
        out = config.outs[name]
        parts = []
        for one in out.slices:
            feature, batch = config.features[one.feature], []
            for ids in rows[one.feature]:
                found = [vector(one.feature, key)[one.start : one.end] for key in ids]
                if feature.pooling == "FIRSTN":
                    length = feature.max_sequence_length
                    kept = [*found, *[torch.zeros(one.width).double()] * length][:length]
                    batch.append(torch.stack(kept))
                else:
                    total = sum(found, torch.zeros(one.width).double())
                    mean = feature.pooling == "MEAN" and found
                    batch.append(total / len(found) if mean else total)
            shape = (0, feature.length, one.width) if feature.length else (0, one.width)
            parts.append(torch.stack(batch) if batch else torch.zeros(shape).double())
        if out.out_type == "NONE":
            outputs += parts
        elif out.out_type == "CONCAT":
            outputs.append(torch.cat(parts, -1))
        elif out.out_type == "STACK":
            outputs.append(torch.stack(parts, 1))
        else:
            outputs.append(sum(parts[1:], parts[0]))
    return outputs


def _rows(given: tuple[bool, Ragged] | None, batch_size: int) -> list[list[int]]:
    if given is None:
        return [[] for _ in range(batch_size)]
    shared, ragged = given
    return ragged.to_lists() * batch_size if shared else ragged.to_lists()


def look_up(
    found: ShardedFids, config: FeatureConfigs, vector: Callable[[str, int], Tensor]
) -> list[Tensor]:
    """Each list's vectors, as its shard would answer, flat."""
    members = {
        table: [n for n in config.names if config.features[n].table == table]
        for table in config.tables
    }
    lists = []
    for number, ids in enumerate(found.fid_list):
        table = config.tables[number * len(config.tables) // len(found.fid_list)]
        splits = found.fid_list_row_splits[number].tolist()
        parts = [
            vector(name, key)
            for place, name in enumerate(members[table])
            for key in ids[splits[place] : splits[place + 1]].tolist()
        ]
        lists.append(torch.cat(parts) if parts else torch.zeros(0).double())
    return lists


def by_shard(lists: Sequence[Tensor], shards: int) -> Tensor:
    """The lists in one flat tensor, shard by shard."""
    tables = len(lists) // shards
    order = [lists[table * shards + shard] for shard in range(shards) for table in range(tables)]
    return torch.cat(order) if order else torch.zeros(0)
