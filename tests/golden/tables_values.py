"""Vectors of values: first values, string ids, compressors, schedules, clipping."""

from __future__ import annotations

import re
from typing import Any

import torch

from hedgerow import native
from hedgerow.core.hashing import id64
from hedgerow.monolith import gradient_rules
from hedgerow.tables.compressors import Bf16, Compressor, FixedR8, Fp16, Fp32, OneBit
from hedgerow.tables.config import Segment, TableConfig
from hedgerow.tables.host import HostTable
from hedgerow.tables.initializers import (
    Constant,
    Initializer,
    Normal,
    Ones,
    RandomUniform,
    TruncatedNormal,
    Zeros,
)
from hedgerow.tables.layout import RowLayout
from hedgerow.tables.monolith_rules import MonolithAdagrad
from hedgerow.tables.optimizers import Polynomial, Sgd, rate_at

from .runner import Case, take
from .tables_area import AREA, close, make_table, one_segment, original

INITIALIZERS: dict[str, type[Initializer]] = {
    "zeros": Zeros,
    "ones": Ones,
    "constants": Constant,
    "uniform": RandomUniform,
    "normal": Normal,
    "truncated_normal": TruncatedNormal,
}
COMPRESSORS: dict[str, type[Compressor]] = {
    "fp32": Fp32,
    "fp16": Fp16,
    "bf16": Bf16,
    "fixed_r8": FixedR8,
    "one_bit": OneBit,
}


@AREA.handles("initializers", "philox")
def known_answer(case: Case) -> None:
    c = case.take(("counter", "key", "out"))
    words = {name: [int(word, 16) for word in c[name]] for name in c}
    assert list(native.philox(words["counter"], words["key"])) == words["out"]


@AREA.handles("initializers", "cases")
def first_values(case: Case) -> None:
    c = case.take(("id", "kind", "config", "table_seed", "dim", "ids", "rows"))
    init = INITIALIZERS[c["kind"]](**c["config"])
    ids = torch.tensor([int(key) for key in c["ids"]])
    expected = torch.tensor(c["rows"], dtype=torch.float32).view(torch.int32)
    seed = int(c["table_seed"])
    config = TableConfig("golden", (Segment(c["dim"], init, Sgd()),), seed=seed)
    for isa in native.isas():
        native.set_isa(isa)
        try:
            table = make_table(config)
            seen = [init.rows(ids.cpu(), dim=c["dim"], seed=seed)]
            seen.append(table.lookup(ids, missing="initializer").rows_of())
            table.apply_gradients(ids, torch.zeros(len(ids), c["dim"]))
            seen.append(table.lookup(ids).rows_of())
        finally:
            native.set_isa("fastest")
        for rows in seen:
            assert torch.equal(rows.to(expected.device).view(torch.int32), expected), isa


@AREA.handles("string_ids", "cases")
def string_id(case: Case) -> None:
    c = case.take(("value", "field", "id"))
    value = tuple(c["value"]) if isinstance(c["value"], list) else c["value"]
    assert id64(value, c["field"]) == int(c["id"])


@AREA.handles("compressors", "fp32")
@AREA.handles("compressors", "fp16")
def stored_float(case: Case) -> None:
    c = case.take(("bytes_per_value",), ("input", "decoded", "rounding"))
    compressor = COMPRESSORS[case.section]()
    assert compressor.bytes_per_value == c["bytes_per_value"]
    assert c.get("rounding", "nearest-even") == "nearest-even"
    if "input" in c:
        decoded = compressor.decode(compressor.encode(torch.tensor(c["input"])))
        assert torch.equal(decoded, torch.tensor(c["decoded"]))


@AREA.handles("compressors", "fixed_r8")
def fixed_range(case: Case) -> None:
    c = case.take(("range", "input", "codes", "decoded", "nan_code"))
    compressor = FixedR8(c["range"])
    values = torch.tensor(c["input"])
    codes = compressor.encode(values)
    assert codes.tolist() == c["codes"]
    close(compressor.decode(codes), c["decoded"])
    close(compressor.view(values), c["decoded"])
    assert int(compressor.encode(torch.tensor([float("nan")]))) == c["nan_code"]


@AREA.handles("compressors", "one_bit")
def sign_only(case: Case) -> None:
    decoded = [name for name in case.value if name.startswith("decoded_with_amplitude_")]
    c = case.take(("input", "codes", "bytes_per_value", *decoded))
    assert OneBit().bytes_per_value == c["bytes_per_value"]
    codes = OneBit().encode(torch.tensor(c["input"]))
    assert codes.tolist() == c["codes"]
    for name in decoded:
        match = re.fullmatch(r"decoded_with_amplitude_(\d+)_(\d+)", name)
        assert match is not None, name
        amplitude = float(f"{match[1]}.{match[2]}")
        close(OneBit(amplitude=amplitude).decode(codes), c[name])


@AREA.handles("compressors", "hashnet_training")
def steepening_tanh(case: Case) -> None:
    c = case.take(
        ("step_size", "global_step", "x", "grad_in", "grad_out", "scale_after", "forward_after"),
        ("amplitude", "init_scale", "max_scale"),
    )
    settings = {name: c[name] for name in ("amplitude", "init_scale", "max_scale") if name in c}
    compressor = OneBit(step_size=c["step_size"], **settings)
    rtol = case.document["rtol_float32_hashnet"]
    x, grad = torch.tensor(c["x"]), torch.tensor(c["grad_in"])
    step = c["global_step"]
    close(compressor.view(x, step), c["forward_after"], rtol=rtol)
    close(compressor.view_gradient(x, grad, step), c["grad_out"], rtol=rtol)
    assert torch.equal(grad, torch.tensor(c["grad_in"]))
    # The slope itself, through a value so small that tanh is the identity.
    tiny = compressor.view(torch.tensor([1e-6]), step) / (1e-6 * compressor.amplitude)
    close(tiny, [c["scale_after"]], rtol=rtol)
    # The same through a table: a step of rate 1 on the raw row, then a lookup at that step.
    segment = Segment(len(c["x"]), RandomUniform(), Sgd(lr=1.0), compressor)
    table = HostTable(TableConfig("golden", (segment,)))
    key = torch.tensor([1])
    table.assign(key, x[None])
    close(table.lookup(key, step=step).rows, c["forward_after"], rtol=rtol)
    table.apply_gradients(key, grad[None], step=step)
    close(x - table.entries(key).rows[0], c["grad_out"], rtol=rtol, atol=1e-6)


@AREA.handles("compressors", "segment_bytes")
def row_bytes(case: Case) -> None:
    c = case.take(("dims", "compressors", "bytes"))
    segments = tuple(
        Segment(dim, compressor=COMPRESSORS[name]())
        for dim, name in zip(c["dims"], c["compressors"], strict=True)
    )
    config = TableConfig("golden", segments, serving=True)
    assert RowLayout(config).row_bytes == c["bytes"]
    assert HostTable(config).core.native_table.row_bytes() == c["bytes"]


@AREA.handles("schedules", "polynomial")
def polynomial(case: Case) -> None:
    c = case.take(("initial", "decay_steps", "end", "power", "cycle", "steps", "values"))
    schedule = Polynomial(c["initial"], c["decay_steps"], c["end"], c["power"], c["cycle"])
    rates = torch.tensor([schedule(step) for step in c["steps"]], dtype=torch.float64)
    close(rates, c["values"], atol=1e-12, rtol=1e-12)


@AREA.handles("schedules", "warmup")
def warmup(case: Case) -> None:
    c = case.take(("learning_rate", "warmup_steps", "steps", "values"), ("warning",))
    optimizer = original(
        "ftrl", {"learning_rate": c["learning_rate"], "warmup_steps": c["warmup_steps"]}
    )
    rates = [rate_at(optimizer.rate(), step) for step in c["steps"]]
    close(torch.tensor(rates, dtype=torch.float64), c["values"], atol=1e-12, rtol=1e-12)


@AREA.handles("schedules", "dense_adagrad_upstream")
def scheduled_adagrad(case: Case) -> None:
    variables = [name for name in case.value if name.startswith("var")]
    c = case.take(
        (
            *("optimizer", "initial_accumulator_value", "schedule"),
            *("steps_all_at_global_step_0", *variables),
        )
    )
    assert c["optimizer"] == "adagrad"
    schedule = Polynomial(**take(c["schedule"], ("initial", "decay_steps", "end")))
    for name in variables:
        v = take(c[name], ("start", "grad", "end"))
        optimizer = MonolithAdagrad(initial_accumulator_value=c["initial_accumulator_value"])
        table = one_segment(optimizer, len(v["start"]))
        key = torch.tensor([0])
        table.assign(key, torch.tensor([v["start"]]))
        for _ in range(c["steps_all_at_global_step_0"]):
            grads = torch.full((1, len(v["start"])), v["grad"])
            table.apply_gradients(key, grads, rates=[schedule(0)])
        close(table.lookup(key).rows, v["end"])


def _gradients(case: Case, name: str) -> list[torch.Tensor]:
    return [torch.tensor(values, dtype=torch.float64) for values in case.document[name]]


def _all_close(tensors: list[torch.Tensor], expected: list[Any]) -> None:
    for actual, wanted in zip(tensors, expected, strict=True):
        close(actual, wanted, atol=1e-12, rtol=1e-9)


@AREA.handles("clipping", "by_global_norm", scheme=True)
def by_global_norm(case: Case) -> None:
    dense, sparse = _gradients(case, "dense"), _gradients(case, "sparse")
    close(gradient_rules.global_norm([*dense, *sparse]), case.document["global_norm"], rtol=1e-9)
    clipped = gradient_rules.clip_by_global_norm(dense, sparse, case.document["clip_norm"])
    _all_close([*clipped.dense, *clipped.sparse], case.value)


@AREA.handles("clipping", "separate")
def separately(case: Case) -> None:
    c = case.take(("dense_norm", "sparse_norm", "sparse_clip_norm", "dense", "sparse"))
    dense, sparse = _gradients(case, "dense"), _gradients(case, "sparse")
    close(gradient_rules.global_norm(dense), c["dense_norm"], rtol=1e-9)
    close(gradient_rules.global_norm(sparse), c["sparse_norm"], rtol=1e-9)
    limit = case.document["clip_norm"]
    clipped = gradient_rules.clip_separately(dense, sparse, limit, c["sparse_clip_norm"])
    _all_close(clipped.dense, c["dense"])
    _all_close(clipped.sparse, c["sparse"])


@AREA.handles("clipping", "by_value", scheme=True)
def by_value(case: Case) -> None:
    gradients = [*_gradients(case, "dense"), *_gradients(case, "sparse")]
    _all_close(gradient_rules.clip_by_value(gradients, case.document["clip_norm"]), case.value)


@AREA.handles("clipping", "by_norm", scheme=True)
def by_norm(case: Case) -> None:
    gradients = [*_gradients(case, "dense"), *_gradients(case, "sparse")]
    _all_close(gradient_rules.clip_by_norm(gradients, case.document["clip_norm"]), case.value)


@AREA.handles("clipping", "sparse_warmup")
def sparse_warmup(case: Case) -> None:
    c = case.take(("step", "warmup", "value"))
    limit = gradient_rules.warmed_up_limit(case.document["clip_norm"], c["step"], c["warmup"])
    assert abs(limit - c["value"]) < 1e-12
