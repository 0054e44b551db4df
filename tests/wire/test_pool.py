"""Our messages in a process that holds other messages of the same names, or no protobuf at all."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import pytest

from hedgerow.wire.messages import tensor, tf_serving


def _python(script: str) -> str:
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


# Another library's files: the same file name and message names, other fields.
OTHERS = """
def register_others():
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    file = descriptor_pb2.FileDescriptorProto(
        name="tensor.proto", package="tensorflow", syntax="proto3"
    )
    message = file.message_type.add(name="TensorProto")
    message.field.add(name="other", number=1, type=9, label=1)
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    found = message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.TensorProto"))
    assert found(other="x").SerializeToString().hex() == "0a0178"
    return found

def use_ours():
    import torch
    from hedgerow.wire import tensors
    from hedgerow.wire.codec import to_bytes
    message = tensors.to_message(torch.tensor([1.0]))
    assert to_bytes(message).hex() == "080112041202080122040000803f", to_bytes(message).hex()
    return type(message)
"""


@pytest.mark.parametrize(
    "order",
    [
        "register_others(), use_ours()",
        pytest.param("reversed([use_ours(), register_others()])", marks=pytest.mark.long),
    ],
)
def test_others_messages_of_the_same_names_do_not_disturb_ours(order: str) -> None:
    script = textwrap.dedent(OTHERS) + textwrap.dedent(
        f"""
        theirs, ours = {order}
        assert theirs.DESCRIPTOR.full_name == ours.DESCRIPTOR.full_name
        assert theirs is not ours
        print(len(theirs.DESCRIPTOR.fields), len(ours.DESCRIPTOR.fields))
        """
    )
    assert _python(script) == "1 18"


def test_nothing_loads_protobuf_before_a_message_is_asked_for() -> None:
    script = """
        import sys
        from hedgerow.wire import codec, infer_tensors, predict, push, rpc, tensors
        from hedgerow.wire.messages import (
            agent_service, error_codes, kserve, model_export, parameter_sync, tensor, tf_serving,
        )
        print("google.protobuf" in sys.modules, "grpc" in sys.modules)
        kserve.InferParameter
        print("google.protobuf" in sys.modules, "grpc" in sys.modules)
    """
    assert _python(script).split() == ["False", "False", "True", "False"]


def test_without_protobuf_the_error_names_the_extra() -> None:
    script = """
        import sys
        sys.modules["google.protobuf"] = None
        from hedgerow.core.errors import MissingExtraError
        from hedgerow.wire.messages import tensor
        try:
            tensor.TensorProto
        except MissingExtraError as error:
            print(error)
    """
    assert "pip install hedgerow[serving]" in _python(script)


def test_threads_that_ask_first_at_once_get_one_class() -> None:
    script = """
        from concurrent.futures import ThreadPoolExecutor
        from threading import Barrier
        from hedgerow.wire.messages import tf_serving
        ready = Barrier(8)
        def ask(_):
            ready.wait(30)
            return tf_serving.PredictRequest
        with ThreadPoolExecutor(8) as pool:
            print(len(set(pool.map(ask, range(8)))))
    """
    assert _python(script) == "1"


def test_a_name_that_no_file_has_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no 'Tensor'"):
        _ = tensor.Tensor  # type: ignore[attr-defined]
    assert not hasattr(tf_serving, "__wrapped__")


def test_classes_are_the_same_each_time_and_nested_ones_are_reached() -> None:
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: tensor.TensorProto, range(16)))
    assert len(found) == 1
    assert tf_serving.ModelVersionStatus.AVAILABLE == 30
    assert tf_serving.ModelVersionStatus.State.Name(40) == "UNLOADING"  # type: ignore[arg-type]
