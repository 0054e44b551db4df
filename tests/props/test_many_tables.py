"""Random calls on many tables and on plain models of them: the same answers, the same bits."""

from __future__ import annotations

from itertools import accumulate

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.core.ids import Ragged
from hedgerow.monolith.tables.merged import MergedMultiTypeTable
from hedgerow.monolith.tables.multi_type import MultiTypeTable, NativeMultiTable
from hedgerow.tables import initializers, optimizers
from hedgerow.tables.config import TableConfig
from hedgerow.tables.host import HostTable
from hedgerow.tables.store import TableKeys

from ..support import EXTREME_IDS, everything, table_config

IDS = st.sampled_from([*EXTREME_IDS, 2, 3, 64, 2**40])
VALUES = st.integers(-64, 64).map(lambda k: k / 16)
OPTIMIZERS = [optimizers.Sgd(lr=0.5), optimizers.Adagrad(lr=0.5), optimizers.Adam(lr=0.125)]


def _config(dim: int) -> TableConfig:
    return table_config(OPTIMIZERS[dim % 3], dim=dim, seed=None)


def _cells(data: st.DataObject, cells: int) -> list[list[int]]:
    return data.draw(st.lists(st.lists(IDS, max_size=5), min_size=cells, max_size=cells))


def _floats(data: st.DataObject, n: int) -> torch.Tensor:
    return torch.tensor(data.draw(st.lists(VALUES, min_size=n, max_size=n)), dtype=torch.float32)


def _tensor(ids: list[int]) -> torch.Tensor:
    return torch.tensor(ids, dtype=torch.int64)


class _Model:
    """One table after the other, each on its own; cells one by one, in order."""

    def __init__(self, dims: list[int]) -> None:
        self.names = [f"table {k}" for k in range(len(dims))]
        self.configs = {name: _config(dim) for name, dim in zip(self.names, dims, strict=True)}
        self.dims = dims
        self.tables = [
            HostTable(table_config(c.segments[0].optimizer, dim=c.dim, seed=None, name=name))
            for name, c in self.configs.items()
        ]

    def floats(self, cells: list[list[int]]) -> int:
        return sum(len(ids) * self.dims[i % len(self.dims)] for i, ids in enumerate(cells))

    def write(self, verb: str, cells: list[list[int]], flat: torch.Tensor, ts: int) -> int:
        at, inserted = 0, 0
        for i, ids in enumerate(cells):
            k = i % len(self.dims)
            rows = flat[at : at + len(ids) * self.dims[k]].view(-1, self.dims[k])
            at += rows.numel()
            if ids:
                inserted += getattr(self.tables[k], verb)(_tensor(ids), rows, ts=ts).inserted
        return inserted

    def requests(
        self, cells: list[list[int]], flat: torch.Tensor
    ) -> list[tuple[TableKeys, torch.Tensor]]:
        found, at, tables = [], 0, len(self.dims)
        for first in range(0, len(cells), tables):
            own = cells[first : first + tables]
            splits = (0, *accumulate(len(ids) for ids in own))
            keys = TableKeys(_tensor([i for ids in own for i in ids]), splits)
            floats = self.floats(own)
            found.append((keys, flat[at : at + floats]))
            at += floats
        return found

    def read(self, cells: list[list[int]]) -> list[float]:
        found: list[float] = []
        for i, ids in enumerate(cells):
            found += self.tables[i % len(self.dims)].lookup(_tensor(ids)).rows.tolist()
        return found


@settings(max_examples=60)
@given(st.data())
def test_every_front_does_what_separate_tables_do(data: st.DataObject) -> None:
    dims = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    model = _Model(dims)
    shuffled = dict(data.draw(st.permutations(list(model.configs.items()))))
    native, fused = NativeMultiTable(shuffled), MultiTypeTable(shuffled)
    by_keys = NativeMultiTable(shuffled).store
    for ts in range(data.draw(st.integers(1, 5))):
        requests = data.draw(st.integers(0, 3))
        cells = _cells(data, requests * len(dims))
        ids, flat = Ragged.from_lists(cells), _floats(data, model.floats(cells))
        verb = data.draw(st.sampled_from(["assign", "assign_add", "apply_gradients"]))
        inserted = model.write(verb, cells, flat, ts)
        assert getattr(native, f"raw_{verb}")(ids, flat, ts=ts).inserted == inserted
        one_by_one = [by_keys]
        if verb == "apply_gradients" and requests:
            done = fused.fused_apply(ids.values, ids.lengths(), requests, flat, ts=ts)
            assert done.inserted == inserted
        else:
            one_by_one.append(fused.store)
        for store in one_by_one:
            done = [getattr(store, verb)(k, own, ts=ts) for k, own in model.requests(cells, flat)]
            assert sum(applied.inserted for applied in done) == inserted
        assert native.raw_lookup(ids).tolist() == model.read(cells)
        if requests:
            got = fused.fused_lookup(ids.values, ids.lengths(), requests)
            assert got.embeddings.tolist() == model.read(cells)
            assert got.id_offsets.tolist() == ids.row_splits.tolist()
    expected = [(everything(t), t.max_ts()) for t in model.tables]
    for store in (native.store, fused.store, by_keys):
        assert [(everything(t), t.max_ts()) for t in store.tables] == expected


SLOTS = ["a", "b", "c", "fc_slot_1", "Ü"]


@settings(max_examples=60)
@given(st.data())
def test_merged_slots_do_what_a_dict_a_config_does(data: st.DataObject) -> None:
    dims = {slot: data.draw(st.integers(1, 2)) for slot in SLOTS}
    sgd, zeros = optimizers.Sgd(lr=0.5), initializers.Zeros()
    table = MergedMultiTypeTable({s: table_config(sgd, dim, zeros) for s, dim in dims.items()})
    assert len(table.groups) == len(set(dims.values()))
    model: dict[tuple[int, int], torch.Tensor] = {}
    for _ in range(data.draw(st.integers(1, 5))):
        slots = data.draw(st.permutations(SLOTS))[: data.draw(st.integers(0, 5))]
        verb = data.draw(st.sampled_from(["assign", "assign_add", "apply_gradients"]))
        batch = {}
        for slot in slots:
            ids = data.draw(st.lists(IDS, max_size=4))
            batch[slot] = (_tensor(ids), _floats(data, len(ids) * dims[slot]).view(-1, dims[slot]))
        getattr(table, verb)(batch)
        for slot in sorted(slots):
            ids, rows = batch[slot]
            for key, row in zip(ids.tolist(), rows, strict=True):
                old = model.get((dims[slot], key), torch.zeros(dims[slot]))
                new = {"assign": row, "assign_add": old + row, "apply_gradients": old - row / 2}
                model[dims[slot], key] = new[verb]
        asked = {slot: _tensor(data.draw(st.lists(IDS, max_size=4))) for slot in slots}
        found = table.lookup(asked)
        assert list(found) == list(asked)
        for slot, ids in asked.items():
            absent = torch.zeros(dims[slot])
            wanted = [model.get((dims[slot], key), absent).tolist() for key in ids.tolist()]
            assert found[slot].tolist() == wanted
        assert table.size() == len(model)
