"""Every native function has a plain twin, and both agree on random and hostile input."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow import native
from hedgerow.core.hashing import xxh64
from hedgerow.native import _native
from hedgerow.tables.compressors import Bf16, Compressor, FixedR8, Fp16, Fp32, OneBit
from tests.support import isa
from tests.twins import native_core
from tests.twins.native_values import half_neighbours

# What a plain twin has no notion of: processor, threads, memory, files.
OF_THE_PROCESS = {
    "RowFile",
    "isa",
    "isas",
    "set_isa",
    "threads",
    "set_threads",
    "memory_used",
    "memory_limit",
    "set_memory_limit",
    "scratch_bytes",
    "reset_scratch_bytes",
}
OF_THE_MEMORY = {"load", "memory", "searched"}
FLOATS = st.floats(width=32, allow_subnormal=True)


def _public(thing: object) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def test_every_native_name_has_a_twin_and_a_place_in_the_door() -> None:
    assert _public(_native) == set(native.__all__)
    assert _public(_native) - OF_THE_PROCESS == set(native_core.__all__)
    for name in ("Table", "Codec"):
        native_methods = _public(getattr(_native, name)) - OF_THE_MEMORY
        assert native_methods <= _public(getattr(native_core, name))
    assert set(native.rule_names()) == set(native_core.rule_names())


def test_the_stub_lists_exactly_what_the_module_has() -> None:
    path = Path(inspect.getfile(native)).with_name("_native.pyi")
    tree = ast.parse(path.read_text())
    found = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    assert set(found) == _public(_native)
    for name, node in found.items():
        if isinstance(node, ast.ClassDef):
            methods = {m.name for m in node.body if isinstance(m, ast.FunctionDef)}
            assert methods - {"__init__"} == _public(getattr(_native, name))


@given(
    st.lists(st.integers(0, 2**32 - 1), min_size=4, max_size=4),
    st.lists(st.integers(0, 2**32 - 1), min_size=2, max_size=2),
)
def test_philox_agrees(counter: list[int], key: list[int]) -> None:
    assert list(native.philox(counter, key)) == native_core.philox(counter, key)


@settings(max_examples=30)
@given(
    kind=st.sampled_from(["constant", "uniform", "normal", "truncated_normal"]),
    ids=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4),
    seed=st.integers(0, 2**64 - 1),
    column=st.integers(0, 9),
    dim=st.integers(1, 40),
    a=st.floats(-2, 2, width=32),
    b=st.floats(0, 3, width=32),
)
def test_first_values_agree_bit_for_bit(
    kind: str, ids: list[int], seed: int, column: int, dim: int, a: float, b: float
) -> None:
    keys = np.array(ids)
    ours, twin = (np.empty((len(ids), dim), np.float32) for _ in range(2))
    for core, out in ((native, ours), (native_core, twin)):
        core.first_values(
            kind, a, b, seed, keys.ctypes.data, len(ids), column, dim, out.ctypes.data
        )
    assert ours.tobytes() == twin.tobytes()


@given(FLOATS)
def test_half_neighbours_agree_and_enclose(x: float) -> None:
    ours = native.half_neighbours(x)
    assert repr(ours) == repr(half_neighbours(x))
    if abs(x) <= 65504:
        assert ours[0] <= x <= ours[1]


@pytest.mark.parametrize("position", [0, 1, 65_535, 65_536, 199_999])
def test_the_first_value_that_is_not_finite_is_found(position: int) -> None:
    values = np.zeros(200_000, np.float32)
    for core in (native, native_core):
        assert core.first_not_finite(values.ctypes.data, len(values)) == -1
    values[position] = np.nan
    values[-1] = np.inf
    for core in (native, native_core):
        assert core.first_not_finite(values.ctypes.data, len(values)) == position


def test_a_subnormal_and_a_huge_value_are_finite() -> None:
    values = np.array([1e-45, -3.4e38, 0.0, -0.0], np.float32)
    assert native.first_not_finite(values.ctypes.data, 4) == -1


@pytest.mark.parametrize("name", native.isas())
@pytest.mark.parametrize("dim", [1, 3, 16, 64, 100])
@pytest.mark.parametrize("n", [0, 1, 33, 5_000])
def test_gathers_agree(name: str, dim: int, n: int) -> None:
    random = np.random.default_rng(n)
    rows = random.random((700, dim), dtype=np.float32)
    numbers = random.integers(0, 700, n)
    numbers[-2:] = [0, 699][-n:] if n else []
    ours, twin = (np.full((n + 1, dim), 7, np.float32) for _ in range(2))
    with isa(name):
        for core, out in ((native, ours), (native_core, twin)):
            core.gather(rows.ctypes.data, numbers.ctypes.data, n, dim, out.ctypes.data)
    np.testing.assert_array_equal(ours[:n], rows[numbers])
    assert ours.tobytes() == twin.tobytes()
    assert (ours[n] == 7).all()  # nothing beyond the output


CODECS: list[Compressor] = [Fp32(), Fp16(), Bf16(), FixedR8(1.0), FixedR8(0.37), OneBit()]


@pytest.mark.parametrize("compressor", CODECS, ids=lambda c: c.kind)
@given(values=st.lists(FLOATS, min_size=1, max_size=40), step=st.integers(0, 10**6))
def test_codecs_agree_with_their_twins(
    compressor: Compressor, values: list[float], step: int
) -> None:
    x = torch.tensor(values)
    twin = _twin(compressor)
    codes = compressor.encode(x)
    with np.errstate(all="ignore"):
        expected = twin.codes(x.numpy())
        assert codes.view(torch.uint8).numpy().tobytes() == _as_stored(expected, x.numpy())
        np.testing.assert_array_equal(compressor.decode(codes).numpy(), twin.values(expected))
        finite = x.clamp(-1e3, 1e3).nan_to_num()
        view = compressor.view(finite, step).numpy()
        np.testing.assert_allclose(view, twin.view(step, finite.numpy()), rtol=1e-6)
        through = compressor.view_gradient(finite, torch.ones_like(finite), step).numpy()
        wanted = twin.view_gradient(step, finite.numpy(), np.ones(len(values), np.float32))
        np.testing.assert_allclose(through, wanted, rtol=1e-6, atol=1e-30)


def _twin(compressor: Compressor) -> native_core.Codec:
    arguments = {k: v for k, v in compressor.to_dict().items() if k != "kind"}
    return native_core.Codec(compressor.kind, **arguments)


def _as_stored(codes: np.ndarray, values: np.ndarray) -> bytes:
    """numpy keeps the payload of a NaN in half; the core writes one quiet NaN."""
    if codes.dtype == np.float16:
        quiet = np.where(np.signbit(values), np.uint16(0xFE00), np.uint16(0x7E00))
        codes = np.where(np.isnan(values), quiet, codes.view(np.uint16))
    return codes.tobytes()


def test_bf16_and_fp16_store_what_torch_stores() -> None:
    bits = torch.randint(-(2**31), 2**31 - 1, (200_000,), dtype=torch.int32)
    x = bits.view(torch.float32)
    x = x[x.isfinite()]
    assert torch.equal(Fp16().encode(x), x.half())
    assert torch.equal(Bf16().encode(x), x.bfloat16())
    assert torch.equal(Fp16().decode(x.half()), x.half().float())


@given(st.binary(max_size=100), st.integers(0, 2**32 - 1), st.integers(0, 100))
def test_checksums_agree_and_can_be_continued(data: bytes, seed: int, cut: int) -> None:
    start = np.frombuffer(data, np.uint8).ctypes.data if data else 0
    whole = native.crc32c(start, len(data), seed)
    assert whole == native_core.crc32c(start, len(data), seed)
    cut = min(cut, len(data))
    first = native.crc32c(start, cut, seed)
    assert native.crc32c(start + cut, len(data) - cut, first) == whole


@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (b"", 0),
    ],
)
def test_known_checksums(data: bytes, crc: int) -> None:
    start = np.frombuffer(data, np.uint8).ctypes.data if data else 0
    for core in (native, native_core):
        assert core.crc32c(start, len(data), 0) == crc


@given(st.lists(st.binary(max_size=100), max_size=6), st.integers(0, 2**64 - 1))
def test_hashes_of_strings_agree(strings: list[bytes], seed: int) -> None:
    data = np.frombuffer(b"".join(strings) or b"-", np.uint8)
    offsets = np.cumsum([0, *map(len, strings)], dtype=np.int64)
    ours, twin = (np.empty(len(strings), np.uint64) for _ in range(2))
    for core, out in ((native, ours), (native_core, twin)):
        core.hash_strings(
            data.ctypes.data, offsets.ctypes.data, len(strings), seed, out.ctypes.data
        )
    assert ours.tolist() == twin.tolist() == [xxh64(string, seed) for string in strings]
