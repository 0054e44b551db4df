"""The features of partitioned tables from what the original's parser knows of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..core.checks import unknown
from ..core.errors import ConfigError, InputError
from ..ops.combiners import Combiner, FirstN, ReduceMean, ReduceSum
from ..ops.layout import Feature, FeatureConfigs, OutConfig
from ..sharding.partitioned import PLACEHOLDER_TABLE
from ..tables.config import TableConfig
from ..tables.multi.merged import merge_slots
from ..tables.multi.multi_config import MultiConfig
from .describe import original_names

_POOLINGS: dict[type[Combiner], str] = {ReduceSum: "SUM", ReduceMean: "MEAN", FirstN: "FIRSTN"}


def partitioned_features(
    feature_name_to_config: Mapping[str, TableConfig],
    layout_configs: Mapping[str, OutConfig] | None,
    feature_to_combiner: Mapping[str, Combiner] | None,
    feature_to_unmerged_slice_dims: Mapping[str, Sequence[int]] | None,
    *,
    merge: bool,
) -> tuple[FeatureConfigs, dict[str, TableConfig]]:
    """What the features want to see, and the tables that hold their rows.

    Features without a combiner are summed; slices are those of the config's segments, unless the
    dims before segments were merged are given. Without `merge` every feature is a table of its own.
    """
    config = MultiConfig.of(feature_name_to_config)
    combiners, slices = feature_to_combiner or {}, feature_to_unmerged_slice_dims or {}
    for what, given in (("feature_to_combiner", combiners), ("slice dims", slices)):
        for name in given:
            if name not in config.positions:
                unknown(f"feature in {what}", name, config.names)
    tables = dict(zip(config.names, config.configs, strict=True))
    table_of = dict.fromkeys(config.names, PLACEHOLDER_TABLE)
    if merge:
        groups, tables = merge_slots(config, original_names)
        table_of = {slot: original_names(group)[0] for group in groups for slot in group.slots}
    features = {}
    for name, own in zip(config.names, config.configs, strict=True):
        dims = tuple(slices.get(name, [segment.dim for segment in own.segments]))
        if sum(dims) != own.dim:
            raise InputError(
                f"slice dims {list(dims)} of feature {name!r} add up to {sum(dims)}; its rows have "
                f"{own.dim} columns."
            )
        pooling, length = pooling_of(name, combiners.get(name))
        features[name] = Feature(table_of[name], pooling, dims, length)
    return FeatureConfigs(features, dict(layout_configs or {})), tables


def pooling_of(feature: str, combiner: Combiner | None) -> tuple[str, int]:
    """How the ids of a feature are pooled, and how many are kept apart.

    >>> pooling_of("f", FirstN(3)), pooling_of("f", None)
    (('FIRSTN', 3), ('SUM', 0))
    """
    if combiner is None:
        return "SUM", 0
    if type(combiner) not in _POOLINGS:
        raise ConfigError(
            f"feature {feature!r} has combiner {combiner!r}; layouts take ReduceSum, ReduceMean "
            f"and FirstN."
        )
    return _POOLINGS[type(combiner)], combiner.max_seq_length
