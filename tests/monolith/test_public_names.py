"""Monolith's public names, written down by hand from its published interface."""

from __future__ import annotations

import importlib

import pytest

PUBLIC = {
    "distribution_ops": (
        "fill_with_offset_map",
        "fill_with_offset_map_gradient",
        "finalize_shared_tensor",
        "fused_embedding_to_layout",
        "fused_embedding_to_layout_grad",
        "fused_gather_embeddings_by_input",
        "fused_gather_embeddings_by_input_gradient",
        "fused_reduce_and_split_gpu",
        "fused_reduce_sum_and_split",
        "fused_reorder_by_indices",
        "fused_sorted_segment_sum",
        "fused_value_rowids",
        "gather_embeddings_by_ids_gradient_back_prop",
        "gather_embeddings_by_input",
        "map_id_to_embedding",
        "map_id_to_embedding_gradient_back_prop",
        "normalize_merged_split",
        "ragged_split_by_indices",
        "reduce_mean",
        "reduce_sqrtn",
        "reduce_sum",
        "reorder_by_indices",
        "split_by_indices",
        "unique_key_with_value_and_offset",
    ),
    "distributed_ps_factory": (
        "CachedConfig",
        "DistributedHashTable",
        "DistributedMultiTypeHashTable",
        "DistributedMultiTypeHashTableMpi",
        "MergedMultiTypeHashTable",
        "MultiHashTable",
        "MultiHashTableFactory",
        "MultiTypeHashTable",
        "PartitionedHashTable",
        "convert_to_cached_config",
        "create_hash_filters",
        "create_in_worker_multi_type_hash_table",
        "create_in_worker_native_multi_hash_table",
        "create_multi_type_hash_table",
        "create_native_multi_hash_table",
        "create_partitioned_hash_table",
    ),
    "distributed_serving_ops": (
        "DummySyncServer",
        "ParameterSyncClient",
        "create_dummy_sync_client",
        "create_dummy_sync_server",
        "create_parameter_sync_clients",
        "parameter_sync_client_from_config",
        "refresh_sync_config",
        "remote_predict",
    ),
    "distribution_utils": (
        "bps_comm_benchmark",
        "bps_init",
        "byteps_benchmark_a2a",
        "byteps_benchmark_ar",
        "enable_sync_training",
        "get_device_str",
        "get_mpi_local_rank",
        "get_mpi_local_size",
        "get_mpi_rank",
        "get_mpi_size",
        "get_sync_run_hooks",
        "init_sync_train_and_update_conf",
        "try_init_cuda",
        "update_session_config_for_gpu",
    ),
    "embedding_combiners": ("Combiner", "FirstN", "ReduceMean", "ReduceSum"),
}
# What Monolith reads from flags, sessions and device scopes is an argument here.
ARGUMENTS = {
    "distributed_ps_factory": {"cluster"},
    "distributed_serving_ops": {"Replicas"},
    "distribution_utils": {"GpuOptions", "LaunchFlags", "SyncTrainConfig"},
}


@pytest.mark.parametrize("door", PUBLIC)
def test_every_public_name_of_monolith_is_at_the_door(door: str) -> None:
    module = importlib.import_module(f"hedgerow.monolith.{door}")
    assert [name for name in PUBLIC[door] if not callable(getattr(module, name, None))] == []
    assert set(module.__all__) == {*PUBLIC[door], *ARGUMENTS.get(door, ())}
