from __future__ import annotations

import gc
import threading

import pytest
import torch

from hedgerow.core import process_state
from hedgerow.core.clock import ManualClock, SystemClock
from hedgerow.core.counters import Counters
from hedgerow.core.errors import InputError, NameTakenError
from hedgerow.core.hashing import fid_v1_to_v2, id64, make_fid, mix64, signature_of, slot_of, xxh64
from hedgerow.core.id_batch import IdBatch
from hedgerow.core.ids import Ragged
from hedgerow.core.units import format_bytes, parse_bytes, parse_seconds


def test_mix64_is_a_bijection_on_a_sample_and_keeps_its_known_answers() -> None:
    keys = torch.cat([torch.arange(-50_000, 50_000), torch.tensor([2**63 - 1, -(2**63)])])
    mixed = mix64(keys)
    assert len(mixed.unique()) == len(keys)
    assert mixed[50_001] == 0xB456BCFC34C2CB2C - 2**64  # of key 1


@pytest.mark.parametrize("length", [0, 1, 3, 4, 7, 8, 31, 32, 33, 64, 100])
def test_xxh64_depends_on_every_byte_and_the_seed(length: int) -> None:
    data = bytes(range(length))
    seen = {xxh64(data, 0), xxh64(data, 1), xxh64(data + b"\0", 0)}
    seen |= {xxh64(data[:i] + b"\xff" + data[i + 1 :], 0) for i in range(length)}
    assert len(seen) == length + 3


@pytest.mark.parametrize("value", [1.5, None, True, ["a"], (1.5,)])
def test_id64_refuses_what_has_no_fixed_bytes(value: object) -> None:
    with pytest.raises(TypeError):
        id64(value)  # type: ignore[arg-type]


def test_id64_takes_the_whole_range_of_64_bits_and_no_more() -> None:
    assert id64(2**64 - 1) == id64(-1)
    with pytest.raises(InputError, match="64 bits"):
        id64(2**64)
    with pytest.raises(InputError, match="pass bytes"):
        id64("\ud800")


def test_fids_keep_slot_and_signature_as_numbers_and_as_tensors() -> None:
    for version, slots, bits in ((1, 1024, 54), (2, 32768, 48)):
        fids = [make_fid(version, slot, -1) for slot in range(0, slots, 97)]
        assert [slot_of(f, version) for f in fids] == list(range(0, slots, 97))
        assert {signature_of(f, version) for f in fids} == {2**bits - 1}
        tensor = torch.tensor(fids)
        assert slot_of(tensor, version).tolist() == list(range(0, slots, 97))
    moved = fid_v1_to_v2(torch.tensor([make_fid(1, 1023, 5)]))
    assert moved.tolist() == [make_fid(2, 1023, 5)]
    with pytest.raises(ValueError, match="slot is 1024"):
        make_fid(1, 1024, 0)
    with pytest.raises(ValueError, match="1 or 2"):
        slot_of(5, 3)


def test_units_read_back_and_refuse_nonsense() -> None:
    assert parse_seconds("1.5h") == 5400
    assert parse_bytes("64 MiB") == 64 * 2**20
    assert [format_bytes(n) for n in (1023, 1024, 10 * 2**20, 5 * 2**50)] == [
        "1023 B",
        "1.00 KiB",
        "10.0 MiB",
        "5120 TiB",
    ]
    for bad in ("", "7", "7 parsecs", "-1s", "nan s"):
        with pytest.raises(InputError):
            parse_seconds(bad)


def test_a_manual_clock_moves_only_by_hand() -> None:
    clock = ManualClock(10)
    clock.advance(5)
    assert clock.now_s() == 15
    clock.set(3)
    assert clock.now_s() == 3
    assert isinstance(SystemClock().now_s(), int)


def test_counters_add_up_over_threads() -> None:
    counters = Counters()
    workers = [
        threading.Thread(target=lambda: [counters.add("n", 2) for _ in range(1000)])
        for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert counters.read("n") == 8000
    assert counters.read("other") == 0


class _Thing:
    pass


def test_a_shared_name_is_free_again_when_its_owner_is_gone() -> None:
    first = _Thing()
    process_state.register("values/name", first)
    with pytest.raises(NameTakenError, match="values/name"):
        process_state.register("values/name", _Thing())
    del first
    gc.collect()
    second = _Thing()
    process_state.register("values/name", second)
    process_state.release("values/name", _Thing())  # not the owner: no effect
    assert process_state.find("values/name") is second
    process_state.clear()
    assert process_state.find("values/name") is None


def test_ragged_rows_and_what_is_refused() -> None:
    ragged = Ragged.from_lists([[1, 2], [], [3]])
    assert ragged.to_lists() == [[1, 2], [], [3]]
    assert Ragged.from_lists([]).rows == 0
    values = torch.arange(3)
    for splits in ([], [1, 3], [0, 2], [0, 3, 2, 3]):
        with pytest.raises(InputError):
            Ragged(values, torch.tensor(splits, dtype=torch.int64))
    with pytest.raises(InputError, match="row 3"):
        ragged.row(3)
    with pytest.raises(InputError) as caught:
        Ragged(values, torch.arange(1, 100_000))
    assert len(str(caught.value)) < 200
    assert ragged != Ragged.from_lists([[1, 2], [], [3]])  # values with tensors compare by identity


def test_id_batches_hold_features_of_equal_length() -> None:
    batch = IdBatch.from_lists({"user": [[1], [2]], "items": [[5, 6], []]})
    assert batch.samples == 2
    assert batch.feature("items").to_lists() == [[5, 6], []]
    assert batch.feature("user").values.data_ptr() == batch.values.data_ptr()
    assert IdBatch.from_lists({}).samples == 0
    with pytest.raises(InputError, match="samples"):
        IdBatch.from_lists({"a": [[1]], "b": []})
    with pytest.raises(KeyError, match="Did you mean 'items'"):
        batch.feature("item")
    with pytest.raises(InputError, match="repeat"):
        IdBatch(("a", "a"), torch.arange(2), torch.tensor([0, 1, 2]))
    with pytest.raises(InputError, match="divide"):
        IdBatch(("a", "b"), torch.arange(2), torch.tensor([0, 2]))
    with pytest.raises(InputError, match="weights"):
        IdBatch(("a",), torch.arange(2), torch.tensor([0, 2]), torch.ones(3))


@pytest.mark.parametrize(("version", "bits"), [(1, 54), (2, 48)])
def test_d22_no_bit_of_a_signature_reaches_the_slot(version: int, bits: int) -> None:
    for signature in (2**bits, 2**bits + 5, -1, 2**63):
        fid = make_fid(version, 6, signature)
        assert (slot_of(fid, version), signature_of(fid, version)) == (6, signature % 2**bits)
