"""The numbers that other implementations have: names and numbers of every field and service."""

from __future__ import annotations

import pytest

from hedgerow.wire import rpc
from hedgerow.wire.pool import POOL

SERVING, SYNC = "tensorflow.serving.", "monolith.parameter_sync."
AGENT, INFER = "monolith.serving.agent_service.", "inference."
POLICY = SERVING + "FileSystemStoragePathSourceConfig.ServableVersionPolicy"

FIELDS = {
    "tensorflow.TensorProto": "1 dtype 2 tensor_shape 3 version_number 4 tensor_content "
    "5 float_val 6 double_val 7 int_val 8 string_val 9 scomplex_val 10 int64_val 11 bool_val "
    "12 dcomplex_val 13 half_val 14 resource_handle_val 15 variant_val 16 uint32_val "
    "17 uint64_val 18 float8_val",
    "tensorflow.TensorShapeProto": "2 dim 3 unknown_rank",
    "tensorflow.TensorShapeProto.Dim": "1 size 2 name",
    "tensorflow.SignatureDef": "1 inputs 2 outputs 3 method_name 4 defaults",
    "tensorflow.TensorInfo": "1 name 2 dtype 3 tensor_shape 4 coo_sparse 5 composite_tensor",
    SERVING + "PredictRequest": "1 model_spec 2 inputs 3 output_filter "
    "5 predict_streamed_options 6 client_id 7 request_options",
    SERVING + "PredictResponse": "1 outputs 2 model_spec",
    SERVING + "ModelSpec": "1 name 2 version 3 signature_name 4 version_label",
    "google.protobuf.Int64Value": "1 value",
    "google.protobuf.Any": "1 type_url 2 value",
    SERVING + "GetModelMetadataRequest": "1 model_spec 2 metadata_field",
    SERVING + "GetModelMetadataResponse": "1 model_spec 2 metadata",
    SERVING + "SignatureDefMap": "1 signature_def",
    SERVING + "GetModelStatusRequest": "1 model_spec",
    SERVING + "GetModelStatusResponse": "1 model_version_status",
    SERVING + "ModelVersionStatus": "1 version 2 state 3 status",
    SERVING + "StatusProto": "1 error_code 2 error_message",
    SERVING + "ReloadConfigRequest": "1 config 2 metric_names",
    SERVING + "ReloadConfigResponse": "1 status 2 metric",
    SERVING + "ModelServerConfig": "1 model_config_list 2 custom_model_config",
    SERVING + "Metric": "1 name 2 int64_value_increase",
    SERVING + "ModelConfigList": "1 config",
    SERVING + "ModelConfig": "1 name 2 base_path 3 model_type 4 model_platform 6 logging_config "
    "7 model_version_policy 8 version_labels",
    POLICY: "100 latest 101 all 102 specific",
    POLICY + ".Latest": "1 num_versions",
    POLICY + ".Specific": "1 versions",
    INFER + "ServerLiveResponse": "1 live",
    INFER + "ServerReadyResponse": "1 ready",
    INFER + "ModelReadyRequest": "1 name 2 version",
    INFER + "ModelReadyResponse": "1 ready",
    INFER + "ServerMetadataResponse": "1 name 2 version 3 extensions",
    INFER + "ModelMetadataRequest": "1 name 2 version",
    INFER + "ModelMetadataResponse": "1 name 2 versions 3 platform 4 inputs 5 outputs",
    INFER + "ModelMetadataResponse.TensorMetadata": "1 name 2 datatype 3 shape",
    INFER + "InferParameter": "1 bool_param 2 int64_param 3 string_param 4 double_param "
    "5 uint64_param",
    INFER + "InferTensorContents": "1 bool_contents 2 int_contents 3 int64_contents "
    "4 uint_contents 5 uint64_contents 6 fp32_contents 7 fp64_contents 8 bytes_contents",
    INFER + "ModelInferRequest": "1 model_name 2 model_version 3 id 4 parameters 5 inputs "
    "6 outputs 7 raw_input_contents",
    INFER + "ModelInferRequest.InferInputTensor": "1 name 2 datatype 3 shape 4 parameters "
    "5 contents",
    INFER + "ModelInferRequest.InferRequestedOutputTensor": "1 name 2 parameters",
    INFER + "ModelInferResponse": "1 model_name 2 model_version 3 id 4 parameters 5 outputs "
    "6 raw_output_contents",
    INFER + "ModelInferResponse.InferOutputTensor": "1 name 2 datatype 3 shape 4 parameters "
    "5 contents",
    SYNC + "PushRequest": "1 model_name 2 signature_name 3 delta_hash_tables 4 timeout_in_ms "
    "5 delta_multi_hash_tables",
    SYNC + "PushRequest.DeltaEmbeddingHashTable": "1 unique_id 2 dim_size 3 fids 4 embeddings",
    SYNC + "PushResponse": "1 status_code 2 error_message 3 target 4 update_num",
    SYNC + "PushResult": "1 responses",
    SYNC + "ClientConfig": "1 model_name 2 signature_name 3 targets 4 timeout_in_ms "
    "5 targets_extra_info",
    SYNC + "ClientConfig.TargetExtraInfo": "1 idc 2 cluster 3 replica_id",
    AGENT + "AddressList": "1 address",
    AGENT + "GetReplicasRequest": "1 server_type 2 task 3 model_name",
    AGENT + "GetReplicasResponse": "1 address_list",
    AGENT + "GetResourceRequest": "",
    AGENT + "GetResourceResponse": "1 address 2 shard_id 3 replica_id 4 memory 5 cpu 6 network "
    "7 work_load",
    AGENT + "HeartBeatRequest": "1 server_type",
    AGENT + "HeartBeatResponse": "1 addresses",
    "monolith.model_export.ServingEntry": "1 export_dir 2 global_step",
    "monolith.model_export.ServingModelState": "1 entries",
}
DATA_TYPES = [
    "INVALID",
    "FLOAT",
    "DOUBLE",
    "INT32",
    "UINT8",
    "INT16",
    "INT8",
    "STRING",
    "COMPLEX64",
    "INT64",
    "BOOL",
    "QINT8",
    "QUINT8",
    "QINT32",
    "BFLOAT16",
    "QINT16",
    "QUINT16",
    "UINT16",
    "COMPLEX128",
    "HALF",
    "RESOURCE",
    "VARIANT",
    "UINT32",
    "UINT64",
    "FLOAT8_E5M2",
    "FLOAT8_E4M3FN",
]


@pytest.mark.parametrize("message", FIELDS)
def test_fields_have_the_published_numbers(message: str) -> None:
    fields = POOL.FindMessageTypeByName(message).fields
    found = " ".join(f"{field.number} {field.name}" for field in sorted(fields, key=_number))
    assert found == FIELDS[message]


def _number(field: object) -> int:
    return field.number  # type: ignore[attr-defined]


def test_element_types_have_the_published_numbers() -> None:
    values = POOL.FindEnumTypeByName("tensorflow.DataType").values
    wanted = [(number, f"DT_{name}") for number, name in enumerate(DATA_TYPES)]
    assert [(value.number, value.name) for value in values] == wanted


def test_the_status_codes_are_those_of_grpc() -> None:
    import grpc

    values = POOL.FindEnumTypeByName("tensorflow.error.Code").values
    wanted = {code.name: code.value[0] for code in grpc.StatusCode}
    assert {value.name: value.number for value in values} == wanted


@pytest.mark.parametrize(
    ("service", "names"),
    [
        (rpc.PREDICTION_SERVICE, "Predict GetModelMetadata"),
        (rpc.MODEL_SERVICE, "GetModelStatus HandleReloadConfigRequest"),
        (
            rpc.KSERVE_SERVICE,
            "ServerLive ServerReady ModelReady ServerMetadata ModelMetadata ModelInfer",
        ),
        (rpc.AGENT_SERVICE, "GetReplicas GetResource HeartBeat"),
    ],
)
def test_services_have_the_published_methods(service: str, names: str) -> None:
    found = rpc.methods(service)
    assert list(found) == names.split()
    assert [method.path for method in found.values()] == [f"/{service}/{n}" for n in names.split()]
