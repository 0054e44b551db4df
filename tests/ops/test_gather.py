"""Vectors by id against plain Python, their gradients, errors, memory, and forms in torch."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hedgerow import native
from hedgerow.monolith import gather_by_ids
from hedgerow.monolith.gather_by_ids import (
    find_rows,
    find_rows_plain,
    gather_embeddings_by_ids_gradient_back_prop,
    gather_embeddings_by_input,
    map_gradient_plain,
    map_id_to_embedding,
    map_id_to_embedding_gradient_back_prop,
    map_id_to_embedding_plain,
)
from tests.support import EXTREME_IDS, threads

IDS = st.one_of(st.integers(-5, 9), st.sampled_from(EXTREME_IDS))
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def ints(values: list[Any]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def rows(n: int, dim: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Multiples of 1/8: sums are exact, whatever their order."""
    return (torch.arange(n * dim).reshape(n, dim) % 61 / 8 - 3).to(dtype)


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[Tensor], Tensor]:
    """Lists of ids, some of them twice or empty, and ids to be found in them."""
    lists = draw(st.lists(st.lists(IDS, max_size=8), min_size=1, max_size=6))
    known = [i for one in lists for i in one]
    count = draw(st.integers(0, 30)) if known else 0
    queries = [draw(st.sampled_from(known)) for _ in range(count)]
    return [ints(one) for one in lists], ints(queries)


def places(lists: list[Tensor]) -> dict[int, tuple[int, int]]:
    found: dict[int, tuple[int, int]] = {}
    for i, one in enumerate(lists):
        for row, key in enumerate(one.tolist()):
            found.setdefault(key, (i, row))
    return found


@settings(deadline=None)
@given(batches(), st.sampled_from([1, 3, 16]), st.booleans())
def test_every_id_has_the_vector_of_its_first_place(
    batch: tuple[list[Tensor], Tensor], dim: int, many: bool
) -> None:
    lists, queries = batch
    tables = [rows(len(one), dim) + i for i, one in enumerate(lists)]
    at = [places(lists)[query] for query in queries.tolist()]
    wanted = torch.stack([tables[i][row] for i, row in at]) if at else torch.empty(0, dim)
    assert torch.equal(map_id_to_embedding(lists, tables, queries, many), wanted)
    assert torch.equal(map_id_to_embedding_plain(lists, tables, queries, many, False)[0], wanted)

    grads = rows(len(queries), dim)
    sums = [torch.zeros_like(table) for table in tables]
    for (i, row), grad in zip(at, grads, strict=True):
        sums[i][row] += grad
    found = map_id_to_embedding_gradient_back_prop(lists, queries, grads)
    numbers = find_rows(lists, queries)
    assert torch.equal(numbers, find_rows_plain(lists, queries, many, False))
    plain = map_gradient_plain(grads, numbers, [len(one) for one in lists], many, False)
    for one, two, three in zip(found, plain, sums, strict=True):
        assert torch.equal(one, three)
        assert torch.equal(two, three)


@settings(deadline=None)
@given(batches(), st.booleans())
def test_one_table_tells_the_row_it_used(batch: tuple[list[Tensor], Tensor], many: bool) -> None:
    ids, queries = torch.cat(batch[0]), batch[1]
    table = rows(len(ids), 5)
    output, mapping = gather_embeddings_by_input(ids, table, queries, many)
    assert mapping.tolist() == [ids.tolist().index(query) for query in queries.tolist()]
    assert torch.equal(output, table[mapping])
    grads = rows(len(queries), 5)
    found = gather_embeddings_by_ids_gradient_back_prop(ids, grads, mapping)
    assert torch.equal(found, torch.zeros_like(table).index_add_(0, mapping, grads))


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (3, 1, 2)])
def test_the_result_has_the_shape_of_the_input(shape: tuple[int, ...]) -> None:
    ids, table = ints([4, 9]), rows(2, 3)
    queries = torch.full(shape, 9)
    output, mapping = gather_embeddings_by_input(ids, table, queries)
    assert output.shape == (*shape, 3)
    assert mapping.shape == shape
    assert torch.equal(output, table[1].expand(*shape, 3))
    assert map_id_to_embedding([ids], [table], queries).shape == (*shape, 3)


@pytest.mark.parametrize("dtype", FLOATS)
def test_any_float_type_is_copied_and_summed(dtype: torch.dtype) -> None:
    ids, queries = ints([4, 9, 7]), ints([9, 4, 9])
    table = rows(3, 3, dtype).requires_grad_()
    output, _ = gather_embeddings_by_input(ids, table, queries)
    assert torch.equal(output, table[ints([1, 0, 1])])
    (grad,) = torch.autograd.grad(output, table, torch.ones_like(output))
    assert torch.equal(grad, torch.tensor([[1.0] * 3, [2.0] * 3, [0.0] * 3], dtype=dtype))


def test_tensors_that_are_not_contiguous_are_taken() -> None:
    ids = ints([[1, 7], [2, 8], [3, 9]])[:, 0]
    table = rows(3, 3).T
    queries = ints([[1, 2], [3, 3]]).T
    output, mapping = gather_embeddings_by_input(ids, table, queries)
    assert mapping.tolist() == [[0, 2], [1, 2]]
    assert torch.equal(output, table[mapping])


@pytest.mark.parametrize("spread", [1, 3, 2**40 + 1])
@pytest.mark.parametrize("offset", [0, -(2**63), 2**62])
def test_dense_and_scattered_ids_are_found_alike(spread: int, offset: int) -> None:
    """Ids that fill their range are placed by subtraction, others hashed."""
    ids = torch.randperm(5000) * spread + offset
    table = rows(5000, 1)
    queries = ids[torch.randint(0, 5000, (7000,))]
    wanted = map_id_to_embedding_plain([ids], [table], queries, True, False)
    found = gather_embeddings_by_input(ids, table, queries, True)
    assert torch.equal(found[0], wanted[0])
    assert torch.equal(found[1], wanted[1])


@pytest.mark.parametrize("missing", [-1, 3, 10, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("ids", [[0, 1, 2, 4], [0, 2**50, 2, 4]])
def test_d17_an_id_that_is_not_listed_is_named(missing: int, ids: list[int]) -> None:
    queries, table = ints([0, missing, 7]), rows(4, 2)
    for call in (
        lambda: map_id_to_embedding([ints(ids)], [table], queries),
        lambda: map_id_to_embedding_plain([ints(ids)], [table], queries, True, False),
        lambda: gather_embeddings_by_input(ints(ids), table, queries),
        lambda: map_id_to_embedding_gradient_back_prop([ints(ids)], queries, torch.ones(3, 2)),
    ):
        with pytest.raises(ValueError, match=f"input holds {missing}, which is not among the ids"):
            call()


def test_an_id_is_missing_where_no_id_is_listed() -> None:
    for find in (find_rows, lambda *args: find_rows_plain(*args, True, False)):
        assert find([ints([]), ints([])], ints([])).tolist() == []
        with pytest.raises(ValueError, match="input holds 7"):
            find([ints([])], ints([7]))


IDS2, ROWS2, QUERY = ints([1, 2]), torch.zeros(2, 3), ints([1])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (([], [], QUERY), "at least one"),
        (([IDS2], [], QUERY), "1 lists of ids and 0 of embeddings"),
        (([IDS2], [torch.zeros(1, 3)], QUERY), r"embeddings\[0\] has shape \(1, 3\)"),
        (([IDS2, IDS2], [ROWS2, torch.zeros(2, 4)], QUERY), r"embeddings\[1\] has shape"),
        (([IDS2, IDS2], [ROWS2, ROWS2.double()], QUERY), r"embeddings\[1\] has dtype"),
        (([IDS2], [torch.zeros(2)], QUERY), r"embeddings\[0\] has shape \(2,\)"),
        (([IDS2], [IDS2[:, None]], QUERY), r"embeddings\[0\] has dtype torch.int64"),
        (([IDS2.int()], [ROWS2], QUERY), r"ids\[0\] has dtype torch.int32"),
        (([IDS2[None]], [ROWS2[:1]], QUERY), r"ids\[0\] has shape"),
        (([IDS2], [ROWS2], QUERY.int()), "input has dtype torch.int32"),
        (([IDS2], [ROWS2], [1]), "input is a list"),
        (([[1, 2]], [ROWS2], QUERY), r"ids\[0\] is a list"),
        (([IDS2], [[0.0]], QUERY), r"embeddings\[0\] is a list"),
    ],
)
def test_bad_arguments_of_map(args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        map_id_to_embedding(*args)


@pytest.mark.parametrize(
    ("grads", "mapping", "message"),
    [
        (torch.ones(2, 3), QUERY, r"grads has shape \(2, 3\)"),
        (torch.ones(1, 3), ints([2]), "index_mapping holds 2"),
        (torch.ones(1, 3), ints([-1]), "index_mapping holds -1"),
        (torch.ones(1, 3), QUERY.int(), "index_mapping has dtype"),
        (torch.ones(1, 3).long(), QUERY, "grads has dtype"),
        ([1.0], QUERY, "grads is a list"),
        (torch.ones(1, 3), [0], "index_mapping is a list"),
    ],
)
def test_bad_arguments_of_the_gradient(grads: Any, mapping: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gather_embeddings_by_ids_gradient_back_prop(IDS2, grads, mapping)


def test_gradcheck() -> None:
    lists, queries = [ints([5, 6]), ints([]), ints([5, -1])], ints([[5, -1], [6, 5]])
    tables = [rows(len(one), 3, torch.float64).requires_grad_() for one in lists]
    assert torch.autograd.gradcheck(
        lambda *tables: map_id_to_embedding(lists, tables, queries), tables
    )
    assert torch.autograd.gradcheck(
        lambda table: gather_embeddings_by_input(lists[0], table, ints([5, 6, 5]))[0], tables[:1]
    )


def test_tables_of_which_nothing_is_used_get_zeros() -> None:
    lists = [ints([5]), ints([6]), ints([])]
    tables = [rows(len(one), 2).requires_grad_() for one in lists]
    map_id_to_embedding(lists, tables, ints([6, 6])).sum().backward()
    assert [table.grad.tolist() for table in tables] == [[[0.0, 0.0]], [[2.0, 2.0]], []]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_threads_change_nothing(dtype: torch.dtype) -> None:
    """Also the sums of values that round: every one is made in the order of the input."""
    generator = torch.Generator().manual_seed(2)
    lists = list(torch.randperm(30_000, generator=generator).split([9000, 20_000, 1000]))
    tables = [torch.rand(len(one), 8, generator=generator, dtype=dtype) for one in lists]
    queries = torch.randint(0, 30_000, (150_000,), generator=generator)
    grads = torch.rand(150_000, 8, generator=generator, dtype=dtype)
    found = []
    for count in (1, 2, 4):
        with threads(count):
            output = map_id_to_embedding(lists, tables, queries)
            sums = map_id_to_embedding_gradient_back_prop(lists, queries, grads)
            found.append([output, *sums])
            alone = map_id_to_embedding(lists, tables, queries, use_multi_threads=False)
            assert torch.equal(alone, output)
    for other in found[1:]:
        assert all(torch.equal(one, two) for one, two in zip(found[0], other, strict=True))
    numbers = find_rows(lists, queries)
    for row in range(3):
        sum_in_order = torch.zeros(8, dtype=dtype)
        for i in (numbers == row).nonzero().flatten().tolist():
            sum_in_order += grads[i]
        assert torch.equal(found[0][1][row], sum_in_order)


def test_a_million_ids_that_were_split_come_back() -> None:
    """The sizes of Monolith's benchmark: split by shard, mapped back, equal to the start."""
    for ids in (torch.arange(1_000_000), torch.randperm(1_000_000)):
        vectors = ids[:, None] + torch.arange(16) * 0.125
        owners = ids % 10
        lists = [ids[owners == shard] for shard in range(10)]
        tables = [vectors[owners == shard] for shard in range(10)]
        for many in (True, False):
            assert torch.equal(map_id_to_embedding(lists, tables, ids, many), vectors)


@pytest.mark.parametrize(("dim", "columns"), [(32, 4), (256, 2)])
def test_gathered_windows_of_ids_are_the_tables_rows(dim: int, columns: int) -> None:
    ids = torch.arange(100_000)
    table = ids[:, None] * 1.0 + torch.arange(dim) * 2.0**-7
    input = (ids[:, None] + torch.arange(columns)) % len(ids)
    for many in (True, False):
        output, mapping = gather_embeddings_by_input(ids, table, input, many)
        assert torch.equal(mapping, input)
        for column in range(columns):
            assert torch.equal(output[:, column], table.roll(-column, 0))


def test_scratch_is_one_map() -> None:
    """A million ids: 4 bytes a place where they fill their range, else 16 a slot of the map."""
    dense = torch.randperm(1_000_000)
    scattered = torch.randint(-(2**62), 2**62, (1_000_000,)).unique()
    numbers_of_lists = 4 * 1024 + 16 * 11 + 64
    for ids, bound in ((dense, 4 * 1_000_000), (scattered, 16 * 2**21)):
        lists = list(ids.split(100_000))
        tables = [torch.zeros(len(one), 1) for one in lists]
        native.reset_scratch_bytes()
        map_id_to_embedding(lists, tables, ids)
        assert native.scratch_bytes() <= bound + numbers_of_lists
        native.reset_scratch_bytes()
        map_id_to_embedding_gradient_back_prop(lists, ids, torch.zeros(len(ids), 1))
        assert native.scratch_bytes() <= bound + numbers_of_lists


def test_nothing_contiguous_is_copied() -> None:
    ids, table, queries = ints([1, 2]), torch.zeros(2, 3), ints([[1], [2]])
    with mock.patch.object(gather_by_ids, "native", wraps=native) as core:
        gather_embeddings_by_input(ids, table, queries)
    (find,), (copy,) = core.find_rows.call_args_list, core.copy_rows.call_args_list
    assert find.args[0] == [ids.data_ptr()]
    assert find.args[2] == queries.data_ptr()
    assert copy.args[0] == [table.data_ptr()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_torch_knows_the_ops(dtype: torch.dtype) -> None:
    ops = torch.ops.hedgerow
    lists, queries = [ints([5, 6]), ints([-1])], ints([[5, -1], [6, 5]])
    tables = [rows(len(one), 3, dtype).requires_grad_() for one in lists]
    torch.library.opcheck(ops.find_rows.default, (lists, queries, True, False))
    torch.library.opcheck(ops.map_id_to_embedding.default, (lists, tables, queries, True, False))
    torch.library.opcheck(
        ops.map_id_to_embedding_gradient.default,
        (rows(4, 3, dtype).reshape(2, 2, 3), ints([[0, 1], [2, 1]]), [2, 1], True, False),
    )


def test_compiled_is_equal_to_eager() -> None:
    ids, queries = ints([5, 6, 8]), ints([5, 8, 5])

    def loss(table: Tensor, queries: Tensor) -> Tensor:
        output, mapping = gather_embeddings_by_input(ids, table, queries)
        again = map_id_to_embedding([ids[:1], ids[1:]], [table[:1], table[1:]], queries)
        return (output * again).sum() + mapping.sum()

    found = []
    for form in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        table = rows(3, 4).requires_grad_()
        value = form(table, queries)
        found.append((value, *torch.autograd.grad(value, table)))
        with pytest.raises(ValueError, match="input holds 77"):
            form(table, ints([5, 77, 5]))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
