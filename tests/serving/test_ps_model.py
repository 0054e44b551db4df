"""Tables as a served model: lookups that never insert, pushes that store what they bring."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from hedgerow.core.errors import ConfigError
from hedgerow.serving.row_signatures import ps_model
from hedgerow.tables.admission import Count
from hedgerow.tables.multi.host_tables import HostTables
from hedgerow.wire import push
from hedgerow.wire.messages import parameter_sync

from ..support import table_config
from .serving import Caller, host_tables, outputs_of, refused, serving, serving_tables

IDS = torch.tensor([7, -1, 8])
ROWS = {"a": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "b": torch.tensor([[5.0]])}


@pytest.fixture
def tables() -> HostTables:
    return host_tables(a=2, b=1)


@pytest.fixture
def caller(tables: HostTables) -> Iterator[Caller]:
    with serving_tables(tables, shared_name="multi") as server, Caller(server.address) as caller:
        yield caller


def _assign(caller: Caller) -> dict[str, torch.Tensor]:
    inputs = {"a_id": IDS[:2], "a_value": ROWS["a"], "b_id": IDS[2:], "b_value": ROWS["b"]}
    return outputs_of(caller.predict("ps_0", inputs, signature="hashtable_assign"))


def test_assign_tells_how_many_and_lookup_finds_them(caller: Caller) -> None:
    results = _assign(caller)
    assert {name: value.item() for name, value in results.items()} == {
        "a_result": 2,
        "b_result": 1,
    }
    assert results["a_result"].dtype == torch.int32
    assert results["a_result"].shape == ()
    for signature in ("lookup", "hashtable_lookup"):
        inputs = {"a": torch.tensor([-1, 5, 7]), "b": torch.tensor([8])}
        found = outputs_of(caller.predict("ps_0", inputs, signature=signature))
        assert found["a"].tolist() == [[3.0, 4.0], [0.0, 0.0], [1.0, 2.0]]
        assert found["b"].tolist() == [[5.0]]


def test_a_lookup_never_inserts(caller: Caller, tables: HostTables) -> None:
    caller.predict("ps_0", {"a": IDS, "b": IDS}, signature="lookup")
    split = torch.tensor([0, 2, 3])
    caller.predict("ps_0", {"id": IDS, "id_split": split}, signature="raw_lookup")
    assert tables.size() == 0


def test_raw_calls_take_ids_of_all_tables(caller: Caller) -> None:
    split, flat = torch.tensor([0, 2, 3]), torch.tensor([1.0, 2, 3, 4, 5])
    inputs = {"id": IDS, "id_split": split, "flat_value": flat}
    done = outputs_of(caller.predict("ps_0", inputs, signature="multi/raw_assign"))
    assert (done["result"].item(), done["result"].dtype) == (0, torch.int32)
    inputs = {"id": IDS, "id_split": split}
    found = outputs_of(caller.predict("ps_0", inputs, signature="raw_lookup"))
    assert found["flat_emb"].tolist() == flat.tolist()


def test_a_push_of_the_trainer_is_understood(caller: Caller, tables: HostTables) -> None:
    asked = parameter_sync.PushRequest(model_name="ps_0", signature_name="hashtable_assign")
    push.add_rows(asked, "a", IDS[:2], ROWS["a"])
    push.add_rows(asked, "b", IDS[:0], torch.zeros(0, 1))
    caller.call("Predict", push.to_predict(asked))
    assert tables.size() == 2


def test_remove_takes_rows_away(caller: Caller, tables: HostTables) -> None:
    _assign(caller)
    inputs = {"a_id": torch.tensor([7, 99]), "b_id": torch.tensor([8])}
    removed = outputs_of(caller.predict("ps_0", inputs, signature="hashtable_remove"))
    assert {name: value.item() for name, value in removed.items()} == {
        "a_result": 1,
        "b_result": 1,
    }
    assert tables.size() == 1


def test_remove_is_offered_only_when_asked_for(tables: HostTables) -> None:
    assert "hashtable_remove" not in ps_model("ps_0", tables).signatures


def test_tables_that_would_keep_pushed_ids_out_are_not_served() -> None:
    tables = HostTables({"a": table_config(dim=2, admit=Count(5))})
    with pytest.raises(ConfigError, match="serving=True"):
        ps_model("ps_0", tables)


def test_a_training_table_takes_values_as_given() -> None:
    tables = HostTables({"a": table_config(dim=2)})
    with serving(ps_model("ps_0", tables)) as server, Caller(server.address) as caller:
        inputs = {"a_id": torch.tensor([1]), "a_value": torch.tensor([[1.5, -2.5]])}
        caller.predict("ps_0", inputs, signature="hashtable_assign")
        asked = {"a": torch.tensor([1, 2])}
        found = outputs_of(caller.predict("ps_0", asked, signature="lookup"))
    assert found["a"].tolist() == [[1.5, -2.5], [0.0, 0.0]]


@pytest.mark.parametrize(
    "split", [[0, 2], [0, 2, 2], [0, 3, 2], [1, 2, 3], [], [0, 5, 3], [0, -1, 3], [0, 3, 2**62]]
)
def test_wrong_splits_are_refused(caller: Caller, tables: HostTables, split: list[int]) -> None:
    given = torch.tensor(split, dtype=torch.int64)
    inputs = {"id": IDS, "id_split": given}
    found = refused(lambda: caller.predict("ps_0", inputs, signature="raw_lookup"))
    assert found[0] == "INVALID_ARGUMENT"
    assert "id_split" in found[1]
    inputs["flat_value"] = torch.ones(5)
    found = refused(lambda: caller.predict("ps_0", inputs, signature="multi/raw_assign"))
    assert found[0] == "INVALID_ARGUMENT"
    assert tables.size() == 0


def test_wrong_rows_change_no_table(caller: Caller, tables: HostTables) -> None:
    inputs = {"id": IDS, "id_split": torch.tensor([0, 2, 3]), "flat_value": torch.ones(4)}
    code, text = refused(lambda: caller.predict("ps_0", inputs, signature="multi/raw_assign"))
    assert (code, "need 5" in text) == ("INVALID_ARGUMENT", True)
    bad = {"a_id": IDS[:2], "a_value": ROWS["a"], "b_id": IDS[2:], "b_value": torch.ones(2, 1)}
    code, _ = refused(lambda: caller.predict("ps_0", bad, signature="hashtable_assign"))
    assert (code, tables.size()) == ("INVALID_ARGUMENT", 0)
    bad["b_value"] = torch.tensor([[float("nan")]])
    code, text = refused(lambda: caller.predict("ps_0", bad, signature="hashtable_assign"))
    assert (code, tables.size()) == ("INVALID_ARGUMENT", 0)
    assert "nan" in text
