"""TensorProto: both forms of every element type, and the rules by which readers fill and refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from hedgerow.core.errors import DtypeError, InputError
from hedgerow.wire import buffers, dtypes, tensors
from hedgerow.wire.codec import from_bytes, to_bytes
from hedgerow.wire.dtypes import ELEMENTS, ElementType
from hedgerow.wire.messages import tensor

TORCH_WITHOUT_NUMBER = [torch.complex32, torch.float8_e4m3fnuz, torch.qint8]


def every_value(element: ElementType, count: int = 24) -> torch.Tensor:
    """Values of all bit patterns, bools of both kinds."""
    bits = torch.randint(0, 256, (count * element.width,), dtype=torch.uint8)
    if element.name == "bool":
        return bits > 127
    return bits.view(element.torch)


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    assert left.dtype == right.dtype
    assert left.shape == right.shape
    flat = [side.contiguous().reshape(-1).view(torch.uint8) for side in (left, right)]
    return torch.equal(*flat)


def message(number: int, shape: list[int], **fields: Any) -> Any:
    dims = [{"size": size} for size in shape]
    return tensor.TensorProto(dtype=number, tensor_shape={"dim": dims}, **fields)  # type: ignore


@pytest.mark.parametrize("element", ELEMENTS, ids=lambda element: element.name)
@pytest.mark.parametrize("compat", [None, "typed"])
@pytest.mark.parametrize("shape", [(24,), (2, 3, 4), (1, 24, 1)])
def test_every_element_type_comes_back_bit_for_bit(
    element: ElementType, compat: Any, shape: tuple[int, ...]
) -> None:
    value = every_value(element).reshape(shape)
    sent = tensors.to_message(value, compat=compat)
    assert bool(sent.tensor_content) is (compat is None)
    found = tensors.to_torch(from_bytes(tensor.TensorProto, to_bytes(sent)))
    assert same_bits(found, value)


@pytest.mark.parametrize("element", ELEMENTS, ids=lambda element: element.name)
@pytest.mark.parametrize("compat", [None, "typed"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2)])
def test_scalars_and_empty_tensors_keep_their_shape(
    element: ElementType, compat: Any, shape: tuple[int, ...]
) -> None:
    value = every_value(element, int(np.prod(shape))).reshape(shape)
    assert same_bits(tensors.to_torch(tensors.to_message(value, compat=compat)), value)


@pytest.mark.parametrize("element", [e for e in ELEMENTS if e.numpy], ids=lambda e: e.name)
@pytest.mark.parametrize("compat", [None, "typed"])
def test_numpy_and_torch_write_the_same_message(element: ElementType, compat: Any) -> None:
    value = every_value(element).reshape(4, 6)
    array = value.view(torch.uint8).numpy().view(element.numpy).reshape(4, 6)
    sent = tensors.to_message(array, compat=compat)
    assert to_bytes(sent) == to_bytes(tensors.to_message(value, compat=compat))
    found = tensors.to_numpy(sent)
    assert found.dtype == array.dtype
    assert found.tobytes() == array.tobytes()


@pytest.mark.parametrize("name", ["bfloat16", "float8_e5m2", "float8_e4m3fn"])
def test_a_type_that_numpy_lacks_is_read_as_torch_only(name: str) -> None:
    sent = tensors.to_message(torch.ones(2, dtype=getattr(torch, name)))
    with pytest.raises(DtypeError, match=f"{name}, which numpy does not have; read it as a torch"):
        tensors.to_numpy(sent)


def test_other_byte_orders_strides_and_lazy_views_are_written_as_plain_rows() -> None:
    big = np.arange(6, dtype=">i4").reshape(2, 3)
    assert tensors.to_torch(tensors.to_message(big)).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert tensors.to_torch(tensors.to_message(big.T)).tolist() == [[0, 3], [1, 4], [2, 5]]
    turned = torch.arange(6.0).reshape(2, 3).t().requires_grad_()
    assert torch.equal(tensors.to_torch(tensors.to_message(turned)), turned)
    conjugate = torch.tensor([1 + 2j]).conj()
    assert torch.equal(tensors.to_torch(tensors.to_message(conjugate)), conjugate)
    assert torch.equal(tensors.to_torch(tensors.to_message(conjugate.imag)), conjugate.imag)
    nothing = torch.arange(4)[::2][:0]
    assert torch.equal(tensors.to_torch(tensors.to_message(nothing)), nothing)


def test_a_large_content_is_viewed_and_not_copied() -> None:
    sent = tensors.to_message(torch.arange(100_000))
    array = tensors.to_numpy(sent)
    assert not array.flags.owndata
    assert not array.flags.writeable
    found = tensors.buffers.as_torch(dtypes.of_number(9), array, array.shape)
    assert found.data_ptr() == array.ctypes.data


def test_typed_values_from_any_place_in_a_message_lie_where_torch_wants_them() -> None:
    value = torch.randn(100_000, dtype=torch.float64)
    found = tensors.to_torch(tensors.to_message(value, compat="typed"))
    assert torch.equal(found, value)
    assert found.data_ptr() % 8 == 0


def test_a_tensor_outlives_its_message_and_writing_to_it_changes_no_message() -> None:
    for count in (4, 100_000):
        sent = tensors.to_message(torch.zeros(count))
        found = tensors.to_torch(sent)
        found += 1
        assert not any(sent.tensor_content)
        del sent
        assert found.sum() == count


def test_fewer_values_repeat_the_last_and_none_are_zeros() -> None:
    assert tensors.to_torch(message(9, [4], int64_val=[5, 6])).tolist() == [5, 6, 6, 6]
    assert tensors.to_torch(message(10, [2])).tolist() == [False, False]
    assert tensors.to_numpy(message(7, [3], string_val=[b"a"])).tolist() == [b"a"] * 3
    assert tensors.to_numpy(message(7, [2])).tolist() == [b"", b""]
    assert tensors.to_torch(message(8, [3], scomplex_val=[1, 2, 3, 4])).tolist() == [
        *(1 + 2j, 3 + 4j),
        3 + 4j,
    ]
    assert tensors.to_torch(message(24, [3], float8_val=b"\x3c")).tolist() == [1.0, 1.0, 1.0]


def test_surplus_values_are_ignored() -> None:
    assert tensors.to_torch(message(1, [1], float_val=[1, 2, 3])).tolist() == [1.0]
    assert tensors.to_torch(message(3, [], int_val=[7, 8])).item() == 7
    assert tensors.to_numpy(message(7, [1], string_val=[b"a", b"b"])).tolist() == [b"a"]
    assert tensors.to_torch(message(8, [1], scomplex_val=[1, 2, 3])).tolist() == [1 + 2j]
    assert tensors.to_torch(message(9, [0], int64_val=[1])).tolist() == []


def test_narrow_numbers_keep_their_lower_bits() -> None:
    assert tensors.to_torch(message(6, [2], int_val=[300, -1])).tolist() == [44, -1]
    assert tensors.to_torch(message(4, [1], int_val=[-1])).tolist() == [255]
    assert tensors.to_torch(message(14, [2], half_val=[0x3F80, 0x1C000])).tolist() == [1.0, -2.0]


def test_fields_that_nobody_knows_do_not_shift_typed_values() -> None:
    sent = to_bytes(message(1, [2], float_val=[1.0, 2.0], double_val=[5.0]))
    unknown = bytes.fromhex("9a0604deadbeef")  # field 99
    for data in (sent + unknown, unknown + sent):
        assert tensors.to_torch(from_bytes(tensor.TensorProto, data)).tolist() == [1.0, 2.0]


def test_values_in_the_field_of_another_type_count_as_none() -> None:
    assert tensors.to_torch(message(1, [2], double_val=[1.0, 2.0])).tolist() == [0.0, 0.0]


def test_bools_of_any_byte_are_true_or_false() -> None:
    found = tensors.to_torch(message(10, [3], tensor_content=b"\x00\x02\xff"))
    assert found.tolist() == [False, True, True]
    assert found.view(torch.uint8).tolist() == [0, 1, 1]


def test_strings_are_bytes_or_text() -> None:
    mixed = np.array([["a", b"\xff\x00"], ["é", b""]], dtype=object)
    found = tensors.to_value(tensors.to_message(mixed))
    assert isinstance(found, np.ndarray)
    assert found.tolist() == [[b"a", b"\xff\x00"], ["é".encode(), b""]]
    assert tensors.to_numpy(tensors.to_message(np.array(["ab", "c"]))).tolist() == [b"ab", b"c"]
    with pytest.raises(DtypeError, match="torch does not have; use to_numpy"):
        tensors.to_torch(tensors.to_message(mixed))
    with pytest.raises(DtypeError, match="holds 3; an array of objects may hold bytes and str"):
        tensors.to_message(np.array([3], dtype=object))


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        (message(1, [3], tensor_content=b"\0" * 8), "8 bytes; it must be 12"),
        (message(1, [1], tensor_content=b"\0" * 8), "8 bytes; it must be 4"),
        (message(9, [0], tensor_content=b"\0"), "1 bytes; it must be 0"),
        (message(1, [2, -1]), "0 or more"),
        (message(1, [-(2**63)]), "0 or more"),
        (message(7, [1], tensor_content=b"a"), "send them in string_val"),
        (message(1, [1] * 33), "33 dimensions; at most 32"),
        (message(1, [2**62, 2**62]), "more bytes than addresses"),
        (message(1, [2**62, 2**62, 0]), "more bytes than addresses"),
        (message(16, [2]), "dtype 16 cannot be carried"),
        (message(0, [2]), "dtype 0 cannot be carried"),
        (message(99, [2]), "dtype 99 cannot be carried"),
        (message(20, [1]), "dtype 20 cannot be carried"),
        (tensor.TensorProto(dtype=1, tensor_shape={"unknown_rank": True}), "unknown rank"),  # type: ignore
    ],
    ids=range(14),
)
def test_what_is_no_tensor_is_refused(wrong: Any, rule: str) -> None:
    for read in (tensors.to_value, tensors.to_numpy):
        with pytest.raises((InputError, DtypeError), match=rule):
            read(wrong, name="ids")


@pytest.mark.parametrize(
    "claim",
    [
        message(1, [2**29], float_val=[1.0]),
        message(2, [1 << 59]),
        message(7, [2**40], string_val=[b"a"]),
        message(24, [2**31], float8_val=b"a"),
        message(10, [2**20, 2**20]),
    ],
    ids=range(5),
)
def test_a_claim_of_much_memory_is_refused_before_it_is_taken(claim: Any) -> None:
    with pytest.raises(InputError, match="send all values"):
        tensors.to_value(claim)


def test_what_is_left_out_may_be_as_much_as_the_bound() -> None:
    most = buffers.MAX_REPEATED_BYTES // 8
    assert tensors.to_torch(message(9, [most], int64_val=[3])).sum() == 3 * most
    with pytest.raises(InputError, match="at most 67108864 are filled in"):
        tensors.to_torch(message(9, [most + 2], int64_val=[3]))


@pytest.mark.parametrize("dtype", TORCH_WITHOUT_NUMBER, ids=str)
def test_a_torch_type_without_a_number_is_refused(dtype: torch.dtype) -> None:
    with pytest.raises(DtypeError, match="convert it to one of: float32"):
        dtypes.of_torch(dtype)


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        ([1, 2], "ids is a list; pass a torch.Tensor or a numpy array"),
        (np.array(["2020-01-01"], dtype="datetime64[D]"), "cannot be carried"),
        (torch.ones(2).to_sparse(), r"pass ids.to_dense\(\)"),
        (torch.ones(2, device="meta"), "meta device"),
    ],
    ids=range(4),
)
def test_what_cannot_be_written_is_refused(wrong: Any, rule: str) -> None:
    with pytest.raises((InputError, DtypeError), match=rule):
        tensors.to_message(wrong, name="ids")


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(InputError, match="compat is 'raw'; it must be None or 'typed'"):
        tensors.to_message(torch.ones(1), compat="raw")  # type: ignore[arg-type]


def test_more_than_a_message_holds_is_refused_before_it_is_copied() -> None:
    for huge in (torch.zeros(1).expand(2**29), np.broadcast_to(np.float32(0), (2**29,))):
        with pytest.raises(InputError, match="2147483648 bytes; a message holds at most 21474836"):
            tensors.to_message(huge)
