"""Graphs in files: models of many kinds answer as before, and what no server runs is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hedgerow.core.errors import FileDamagedError, NotSupportedError
from hedgerow.serving.bundle import load_bundle
from hedgerow.serving.export import export
from hedgerow.serving.graph import GRAPH_FORMAT, GRAPH_VERSION, read_graph
from hedgerow.serving.graph_ops import ALLOWED, op_of
from hedgerow.serving.program import read_tensors, tensor_bytes

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


class Applied(nn.Module):
    """A function of one tensor, with a weight, a buffer and a constant."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((4,), 2.0))
        self.register_buffer("shift", torch.arange(4.0))
        self.register_buffer("hidden", torch.full((4,), 0.5), persistent=False)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x * self.weight + self.shift + self.hidden + torch.tensor([0.25]))


def _without_gradients(x: Tensor) -> Tensor:
    with torch.no_grad():
        half = x / 2
    return half + x.relu_()


def _sizes(x: Tensor) -> Tensor:
    return x.reshape(x.shape[0] * 2, 2).sum(1).reshape(x.shape[0], -1) / (x.shape[0] + 1)


LSTM = nn.LSTM(4, 3, batch_first=True)
NORM = nn.BatchNorm1d(4).eval()
ATTENTION = nn.MultiheadAttention(4, 2, batch_first=True).eval()
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "without gradients": _without_gradients,
    "sizes": _sizes,
    "types": lambda x: (x > 0).to(torch.float64).to(x.dtype) + x.int(),
    "infinity": lambda x: x.masked_fill(x > 0, float("-inf")).softmax(1).nan_to_num(),
    "several": lambda x: torch.cat([*x.topk(2, dim=1), *x.chunk(2, dim=1)], dim=1),
    "parts": lambda x: torch.einsum("bi,bj->bij", x, x)[:, 1:, ::2].flatten(1),
    "embedding": lambda x: nn.functional.one_hot(x.abs().long().clamp(0, 5), 6).flatten(1).float(),
    "lstm": lambda x: LSTM(x.unsqueeze(1))[0].squeeze(1),
    "norm": lambda x: nn.functional.layer_norm(NORM(x), [4]),
    "attention": lambda x: ATTENTION(x[:, None], x[:, None], x[:, None])[0].squeeze(1),
    "fourier": lambda x: torch.fft.irfft(torch.fft.rfft(x, dim=1) * (1 + 2j), n=4, dim=1),
    "convolution": lambda x: nn.functional.conv1d(x.unsqueeze(1), torch.ones(2, 1, 3)).flatten(1),
    "decomposed": lambda x: nn.functional.pixel_shuffle(x.reshape(-1, 4, 1, 1), 2).flatten(1),
}


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_models_answer_as_before(kind: str, tmp_path: Path) -> None:
    model = Applied(FUNCTIONS[kind]).eval()
    folder = export(model, tmp_path, example=X[:2], version=1)
    served = load_bundle(folder, "m")
    for samples in (1, 3):
        with torch.no_grad():
            expected = model(X[:samples].clone())
        found = served.signatures["serving_default"].run({"x": X[:samples].clone()})["output"]
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    program = served.followed and served.followed._program
    assert program is not None
    assert sorted(program.weights()) >= ["hidden", "shift", "weight"]


def test_new_weights_are_used_whole(tmp_path: Path) -> None:
    model = Applied(lambda x: x).eval()
    served = load_bundle(export(model, tmp_path, example=X[:2], version=1), "m")
    program = served.followed and served.followed._program
    assert program is not None
    fresh = {**program.weights(), "weight": torch.zeros(4)}
    program.replace(fresh)
    found = served.signatures["serving_default"].run({"x": X})["output"]
    assert torch.equal(found, (torch.arange(4.0) + 0.75).expand(3, 4))


def test_sigmoid_makes_probabilities(tmp_path: Path) -> None:
    model = Applied(lambda x: x.sum(1)).eval()
    served = load_bundle(export(model, tmp_path, example=X[:2], version=1, sigmoid=True), "m")
    found = served.signatures["serving_default"].run({"x": X})["output"]
    torch.testing.assert_close(found, model(X).detach().sigmoid())


class _Foreign(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.tests_serving.twice(x)


def test_an_operation_of_others_is_refused_by_name(tmp_path: Path) -> None:
    library = torch.library.Library("tests_serving", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
    library.impl("twice", lambda x: torch.empty_like(x), "Meta")
    with pytest.raises(NotSupportedError, match=r"tests_serving\.twice.* fixed list"):
        export(_Foreign(), tmp_path, example=X, version=1)
    library._destroy()


def test_the_list_holds_operations_that_exist_and_none_that_opens_a_file() -> None:
    for name in sorted(ALLOWED - {"hedgerow.read_rows"}):
        packet = getattr(torch.ops.aten, name.removeprefix("aten."), None)
        assert packet is not None, name
        for overload in packet.overloads():
            kinds = {str(one.type) for one in getattr(packet, overload)._schema.arguments}
            assert not {one for one in kinds if "Storage" in one or "Stream" in one}, name
    for name in ("from_file", "set_", "resize_", "as_strided", "empty", "load", "record_stream"):
        with pytest.raises(FileDamagedError):
            op_of(f"aten.{name}.default")


@pytest.mark.parametrize(
    "name",
    [
        "aten.remainder.int",  # of zero: the process ends
        "aten.to.prim_dtype",  # so it does
        "aten.max.dim_max",  # writes its results into what it is given
        "aten.sort.values",
        "aten.add.out",
    ],
)
def test_forms_of_an_operation_that_no_exported_graph_has_are_refused(name: str) -> None:
    with pytest.raises(FileDamagedError, match="may call"):
        op_of(name)


def test_repeats_do_not_write_past_their_results() -> None:
    """torch believes an `output_size`, and checks a negative number only after it wrote."""
    repeat = op_of("aten.repeat_interleave.Tensor")
    assert repeat(torch.tensor([2, 1]), output_size=3).tolist() == [0, 0, 1]
    with pytest.raises(RuntimeError, match="negative"):
        repeat(torch.tensor([50_000_000, -49_999_999]), output_size=1)


def test_tensors_of_every_type_in_a_file() -> None:
    held = {
        str(dtype): torch.ones(2, 3).to(dtype)
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool)
    }
    held |= {"empty": torch.ones(0, 2), "scalar": torch.tensor(3.0), "turned": torch.ones(3, 2).T}
    found = read_tensors(tensor_bytes(held), "file")
    assert [*found] == [*held]
    for name, tensor in held.items():
        assert torch.equal(found[name], tensor)
        assert found[name].dtype == tensor.dtype
    found["torch.float32"].add_(1)  # its own memory


def _graph(op: str, *args: Any, first: bool = False, **kwargs: Any) -> Any:
    """Of one call, whose arguments may be the inputs; with `first`, the first of its results."""
    pick = {"op": "operator.getitem", "args": [{"value": 5}, 0], "kwargs": {}}
    plain = {
        "format": GRAPH_FORMAT,
        "format_version": GRAPH_VERSION,
        "values": [["input", f"x{i}"] for i in range(5)],
        "nodes": [{"op": op, "args": list(args), "kwargs": kwargs}, *([pick] if first else [])],
        "outputs": {"y": {"value": 6 if first else 5}},
    }
    return read_graph(plain, {}, "")


GIVEN = [{"value": i} for i in range(5)]


@pytest.mark.parametrize(
    ("op", "args", "kwargs"),
    [
        ("aten.sum.default", [GIVEN[0]], {"dtype": 6}),
        ("aten.sum.default", [GIVEN[0]], {"dtype": GIVEN[1]}),
        ("aten.sum.default", [GIVEN[0]], {"dtype": "float32"}),
        ("aten.sum.default", [GIVEN[0]], {"dtype": True}),
        ("aten.sum.default", [GIVEN[0]], {"dtype": {"layout": "strided"}}),
        ("aten.view.dtype", [GIVEN[0], 6], {}),
        ("aten.clone.default", [GIVEN[0]], {"memory_format": 0}),
        ("aten.zeros_like.default", [GIVEN[0]], {"layout": 0}),
        ("aten.zeros_like.default", [GIVEN[0]], {"device": "cpu"}),
    ],
)
def test_types_are_words_and_no_numbers(op: str, args: list[Any], kwargs: Any) -> None:
    """torch takes any number for one, and a process ends by some."""
    with pytest.raises(FileDamagedError, match="it is a "):
        _graph(op, *args, **kwargs)


@pytest.mark.parametrize("short", range(1, 5))
@pytest.mark.parametrize(
    ("op", "more"),
    [
        ("aten._native_batch_norm_legit_no_training.default", [0.1, 1e-5]),
    ],
)
def test_a_norm_reads_nothing_beside_its_arguments(op: str, more: list[Any], short: int) -> None:
    graph = _graph(op, *GIVEN, *more, first=True)
    given = [torch.randn(4, 3), *(torch.rand(3) + 1 for _ in range(4))]
    (found,) = graph.run(*given)
    assert found.shape == (4, 3)
    given[short] = given[short][:2]
    with pytest.raises(FileDamagedError, match="a number for each channel"):
        graph.run(*given)


@pytest.mark.parametrize(
    ("op", "args"),
    [
        *(("mul.left_t", [[1], 2**40]), ("mul.right_", [2**40, [1]]), ("add.t", [[1], [1]])),
        *(("add.str", ["a", "b"]), ("mul.int", [1, 2]), ("remainder.int", [1, 0])),
        *(("to.prim_dtype", [GIVEN[0], 4000]), ("to.prim_Device", [GIVEN[0], None, 4000])),
        ("native_batch_norm.default", [GIVEN[0], None, None, None, None, False, 0.1, 1e-5]),
    ],
)
def test_operations_that_end_a_process_or_fill_it_are_refused(op: str, args: list[Any]) -> None:
    with pytest.raises(FileDamagedError, match="not among the operations"):
        _graph(f"aten.{op}", *args)


@pytest.mark.parametrize("offsets", [[0, 9], [-1, 4], [0, 3, 1, 4], [2**40, 2**41]])
def test_segments_lie_inside_their_data(offsets: list[int]) -> None:
    graph = _graph("aten.segment_reduce.default", GIVEN[0], "sum", offsets=GIVEN[1])
    rest = [torch.zeros(1)] * 3
    (found,) = graph.run(torch.arange(4.0), torch.tensor([0, 1, 4]), *rest)
    assert found.tolist() == [0.0, 6.0]
    with pytest.raises(FileDamagedError, match="outside its 4 rows"):
        graph.run(torch.arange(4.0), torch.tensor(offsets), *rest)
    unchecked = _graph(
        "aten.segment_reduce.default", GIVEN[0], "sum", lengths=GIVEN[1], unsafe=True
    )
    with pytest.raises(FileDamagedError, match="not checked"):
        unchecked.run(torch.arange(4.0), torch.tensor([4]), *rest)


_RNN = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn_tanh": nn.RNN}


def _layers(op: str, *, both_ways: bool, biases: bool) -> list[Any]:
    """The arguments of an operation that runs two recurrent layers over five samples."""
    made = _RNN[op](4, 3, 2, bias=biases, bidirectional=both_ways)
    states = [torch.zeros(4 if both_ways else 2, 5, 3) for _ in range(2 if op == "lstm" else 1)]
    weights = [one.detach() for one in made.parameters()]
    return [torch.randn(6, 5, 4), states, weights, biases, 2, 0.0, False, both_ways, False]


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize("op", _RNN)
def test_recurrent_layers_read_nothing_beside_their_weights(
    op: str, both_ways: bool, biases: bool
) -> None:
    """Every weight and state that is shorter, missing or of another type is refused."""
    run = op_of(f"aten.{op}.input")

    def called(values: Tensor, states: list[Tensor], *rest: Any) -> Any:
        return run(values, states if op == "lstm" else states[0], *rest)

    given = _layers(op, both_ways=both_ways, biases=biases)
    assert called(*given)[0].shape == (6, 5, 6 if both_ways else 3)
    wrong = [[torch.randn(6, 8, 4), *given[1:]], [torch.randn(6, 4), *given[1:]]]
    for place in (1, 2):
        for at, one in enumerate(given[place]):
            for other in (one[:1], one.double(), torch.zeros(0), one.unsqueeze(0)):
                held = [*given[place][:at], other, *given[place][at + 1 :]]
                wrong.append([*given[:place], held, *given[place + 1 :]])
    wrong += [[*given[:2], given[2][:count], *given[3:]] for count in range(len(given[2]))]
    wrong += [[*given[:4], layers, *given[5:]] for layers in (-1, 0, 1, 3, 2**40)]
    for place in (3, 7, 8):
        wrong.append([*given[:place], not given[place], *given[place + 1 :]])
    for one in wrong:
        with pytest.raises(FileDamagedError, match="recurrent layers"):
            called(*one)


def test_layers_of_an_lstm_that_end_in_a_product_run() -> None:
    made = nn.LSTM(4, 6, 2, proj_size=3)
    states = [torch.zeros(2, 5, 3), torch.zeros(2, 5, 6)]
    weights = [one.detach() for one in made.parameters()]
    given = [torch.randn(7, 5, 4), states, weights, True, 2, 0.0, False, False, False]
    assert torch.equal(op_of("aten.lstm.input")(*given)[0], made(given[0])[0])


@pytest.mark.parametrize("op", [*_RNN, "rnn_relu"])
def test_recurrent_layers_over_packed_samples_are_refused(op: str) -> None:
    with pytest.raises(FileDamagedError, match="not among the operations"):
        op_of(f"aten.{op}.data")
