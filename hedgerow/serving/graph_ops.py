"""The operations that the graph of a bundle may call. None of them can run other code.

The list has PyTorch's operations that compute tensors from tensors. Operations that access files,
use raw memory, or change the base of a view are not in it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..core.errors import FileDamagedError

_MOST = 2**63  # bound of sizes and of results of size arithmetic; unbounded ints could fill memory

_ATEN = """
abs absolute acos acosh adaptive_avg_pool1d adaptive_avg_pool2d adaptive_max_pool1d
adaptive_max_pool2d add addbmm addcdiv addcmul addmm addmv addr adjoint alias all alpha_dropout amax
amin aminmax angle any arange arccos arcsin arctan arctan2 argmax argmin argsort argwhere asin asinh
atan atan2 atanh atleast_1d atleast_2d atleast_3d avg_pool1d avg_pool2d baddbmm batch_norm bernoulli
bilinear binary_cross_entropy binary_cross_entropy_with_logits bincount bitwise_and bitwise_not
bitwise_or bitwise_xor block_diag bmm broadcast_tensors broadcast_to bucketize cartesian_prod cat
cdist ceil celu chain_matmul chunk clamp clamp_max clamp_min clip clone column_stack concat
concatenate constant_pad_nd contiguous conv1d conv2d conv_transpose1d conv_transpose2d convolution
copy copysign cos cosh cosine_similarity count_nonzero cross cummax cummin cumprod cumsum deg2rad
detach diag diag_embed diagonal diff digamma dim dist div divide dot dropout dsplit dstack einsum
elu embedding embedding_bag eq equal erf erfc erfinv exp exp2 expand expand_as expm1 eye
feature_dropout fill fix flatten flip fliplr flipud float_power floor floor_divide fmax fmin fmod
frac frobenius_norm full full_like gather gelu ge glu greater greater_equal group_norm gru gru_cell
gt hardshrink hardsigmoid hardswish hardtanh heaviside hsplit hstack hypot index index_add
index_copy index_fill index_put index_reduce index_select inner instance_norm isclose isfinite isin
isinf isnan item kthvalue layer_norm ldexp le leaky_relu lerp less less_equal lgamma lift_fresh_copy
linalg_cross linalg_matrix_norm linalg_norm linalg_vecdot linalg_vector_norm linear linspace log
log10 log1p log2 log_sigmoid log_softmax logaddexp logaddexp2 logcumsumexp logical_and logical_not
logical_or logical_xor logit logsumexp lstm lstm_cell lt masked_fill masked_scatter masked_select
matmul max max_pool1d max_pool2d maximum mean median meshgrid min minimum mish mm moveaxis movedim
mul multinomial multiply mv nan_to_num nanmean nanmedian nansum narrow
native_dropout native_group_norm native_layer_norm ne neg negative new_full new_ones new_zeros
nonzero norm normal not_equal numel one_hot ones ones_like outer pad pairwise_distance permute
positive pow prelu prod quantile rad2deg rand rand_like randint randint_like randn randn_like
randperm ravel reciprocal relu relu6 remainder renorm repeat repeat_interleave reshape reshape_as
rms_norm rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell roll round rsqrt rsub scalar_tensor
scaled_dot_product_attention scatter scatter_add scatter_reduce searchsorted segment_reduce select
select_scatter selu sgn sigmoid sign signbit silu sin sinc sinh size slice slice_scatter softmax
softplus softshrink sort special_erf special_erfinv special_expit special_expm1 special_log1p
special_log_softmax special_logit special_logsumexp special_softmax special_xlogy split
split_with_sizes sqrt square squeeze stack std std_mean sub subtract sum sum_to_size swapaxes
swapdims sym_constrain_range sym_constrain_range_for_size sym_numel sym_size t take take_along_dim
tan tanh tensor_split tensordot threshold tile to topk trace transpose trapezoid tril true_divide
triu trunc type_as unbind unflatten unfold unique_consecutive unique_dim unsafe_chunk unsafe_split
unsqueeze upsample_linear1d upsample_nearest1d var var_mean vdot view view_as vsplit vstack where
xlogy zeros zeros_like mT mH numpy_T matrix_H tril_indices triu_indices real imag conj_physical
resolve_conj resolve_neg complex polar view_as_complex view_as_real fft_fft fft_fft2 fft_hfft
fft_ifft fft_ifft2 fft_ihfft fft_irfft fft_irfft2 fft_rfft fft_rfft2 inverse det logdet slogdet
linalg_inv linalg_solve matrix_power linalg_matrix_power polygamma i0 cartesian_prod combinations
_assert_scalar _assert_tensor_metadata _log_softmax _native_batch_norm_legit_no_training
_safe_softmax _shape_as_tensor _softmax _to_copy _unique2 _unsafe_index _unsafe_view
"""
# Of Hedgerow's ops only the one that reads rows; its arguments are checked when the graph is read.
ALLOWED = frozenset({*(f"aten.{name}" for name in _ATEN.split()), "hedgerow.read_rows"})
READ_ROWS = "hedgerow.read_rows.default"


def _whole(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Returns `function` with a check that an integer result fits into 64 bits."""

    def of_sizes(*given: Any) -> Any:
        found = function(*given)
        if isinstance(found, int) and not -_MOST <= found < _MOST:
            raise FileDamagedError(f"the graph's {name} gives a whole number beyond 64 bits.")
        return found

    of_sizes.__name__ = f"{name}_of_sizes"
    return of_sizes


def _pow(base: Any, exponent: Any) -> Any:
    if isinstance(exponent, int) and exponent > 64:
        raise FileDamagedError(f"the graph takes the power {exponent} of a size; at most 64.")
    return _whole(operator.pow, "pow")(base, exponent)


def _getitem(values: Any, place: int) -> Any:
    """Returns one of several results."""
    if not isinstance(values, tuple | list):
        raise FileDamagedError(f"the graph takes item {place} of one {type(values).__name__}.")
    return values[place]


_PLAIN = {
    "operator": "add and_ eq floordiv ge gt le lt mod mul ne neg not_ or_ sub truediv",
    "math": "ceil floor sqrt trunc",
    "torch": "sym_float sym_int sym_ite sym_max sym_min sym_not sym_sum",
}
_MODULES: dict[str, Any] = {"operator": operator, "math": math, "torch": torch}
# Functions on sizes, and the choice of one of several results.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "operator.getitem": _getitem,
    "operator.pow": _pow,
    **{
        f"{module}.{name}": _whole(getattr(_MODULES[module], name), name)
        for module, names in _PLAIN.items()
        for name in names.split()
        if hasattr(_MODULES[module], name)
    },
}
_NAMES: dict[Any, str] = {
    operator.getitem: "operator.getitem",
    operator.pow: "operator.pow",
    **{
        getattr(_MODULES[module], name): f"{module}.{name}"
        for module, names in _PLAIN.items()
        for name in names.split()
        if hasattr(_MODULES[module], name)
    },
}


def _guarded(op: Any, check: Callable[[dict[str, Any]], None]) -> Callable[..., Any]:
    """Returns an operation with an added check of arguments that torch does not check itself."""
    names = [one.name for one in op._schema.arguments]

    def run(*given: Any, **named: Any) -> Any:
        check({**dict(zip(names, given, strict=False)), **named})
        return op(*given, **named)

    run.__name__ = f"guarded_{str(op).replace('.', '_')}"
    run._schema = op._schema  # pyright: ignore[reportFunctionMemberAccess]
    return run


def _check_channels(given: dict[str, Any]) -> None:
    """Raises unless each parameter has one number per channel: torch would read out of bounds."""
    shape = given["input"].shape
    for name in ("weight", "bias", "running_mean", "running_var"):
        value = given.get(name)
        if value is not None and (len(shape) < 2 or value.shape != shape[1:2]):
            raise FileDamagedError(
                f"the graph normalizes a batch of shape {tuple(shape)} with a {name} of shape "
                f"{tuple(value.shape)}; it must have a number for each channel."
            )


def _check_segments(given: dict[str, Any]) -> None:
    """Raises unless all segments lie inside the data: torch would read out of bounds."""
    data, offsets = given["data"], given.get("offsets")
    if given.get("indices") is not None or given.get("unsafe") not in (None, False):
        raise FileDamagedError("the graph reduces segments that are not checked.")
    if offsets is None or not offsets.numel():
        return
    axis = given.get("axis") or 0
    inside = int(offsets.min()) >= 0 and int(offsets.max()) <= data.shape[axis]
    if not inside or bool((offsets.diff() < 0).any()):
        raise FileDamagedError(f"the graph reduces segments outside its {data.shape[axis]} rows.")


_GATES = {"lstm": 4, "gru": 3, "rnn_relu": 1, "rnn_tanh": 1}  # gates per recurrent layer


def _check_layers(gates: int, given: dict[str, Any]) -> None:
    """Raises unless the shapes of weights and states of recurrent layers fit their input.

    torch would read out of bounds.
    """
    values, params, states = given["input"], given["params"], given["hx"]
    held = [*params, *([states] if isinstance(states, Tensor) else states)]
    shapes = [tuple(one.shape) for one in held]
    fits = shapes == _layer_shapes(gates, given, shapes[0], shapes[-1]) if params else False
    if not fits or any(one.dtype != values.dtype for one in held):
        raise FileDamagedError(
            f"the graph runs recurrent layers over values of shape {tuple(values.shape)} with "
            f"weights or states of shapes {str(shapes)[:200]}, which do not fit."
        )


def _layer_shapes(
    gates: int, given: dict[str, Any], first: tuple[int, ...], last: tuple[int, ...]
) -> list[tuple[int, ...]]:
    """Returns the shapes of all weights and states that fit the first weight and last state."""
    values, layers = given["input"].shape, given["num_layers"]
    if len(values) != 3 or not first or not last or layers > len(given["params"]):
        return []
    directions, hidden = 2 if given["bidirectional"] else 1, first[0] // gates
    states, out = given["hx"], hidden
    if not isinstance(states, Tensor) and states and states[0].dim():
        out = states[0].shape[-1]  # less than `hidden` if the LSTM has a projection
    of_layer: list[tuple[int, ...]] = [(gates * hidden,)] * 2 if given["has_biases"] else []
    of_layer += [(out, hidden)] if out != hidden else []
    shapes: list[tuple[int, ...]] = []
    for width in [values[2], *[out * directions] * (layers - 1)]:
        shapes += [(gates * hidden, width), (gates * hidden, out), *of_layer] * directions
    samples = values[0 if given["batch_first"] else 1]
    sizes = [out, hidden] if gates == _GATES["lstm"] else [hidden]
    return shapes + [(layers * directions, samples, size) for size in sizes]


# Found by calls of every listed operation with arguments that do not fit each other.
_CHECKS: dict[str, Callable[[dict[str, Any]], None]] = {
    "_native_batch_norm_legit_no_training": _check_channels,
    "segment_reduce": _check_segments,
    **{name: partial(_check_layers, gates) for name, gates in _GATES.items()},
}
# Recurrent layers over packed samples: no allowed operation makes packed samples.
_PACKED = frozenset((name, "data") for name in _GATES)


def name_of(target: Any) -> str | None:
    """Returns the name in the file of what a node calls, or None if it is not allowed.

    >>> name_of(torch.ops.aten.mm.default), name_of(torch.ops.aten.from_file.default)
    ('aten.mm.default', None)
    """
    if isinstance(target, torch._ops.OpOverload):
        name = str(target)
        return name if _allowed(name) else None
    try:
        return _NAMES.get(target)
    except TypeError:  # not hashable
        return None


def op_of(name: str) -> Callable[..., Any]:
    """Returns the function that a name in the file calls; raises if it is not allowed.

    >>> op_of("aten.from_file.default")
    Traceback (most recent call last):
    hedgerow.core.errors.FileDamagedError: the graph calls 'aten.from_file.default', which is not \
among the operations that a bundle may call.
    """
    if name in FUNCTIONS:
        return FUNCTIONS[name]
    if _allowed(name):
        space, packet, overload = name.split(".")
        found = getattr(getattr(torch.ops, space), packet, None)
        if found is not None and overload in found.overloads():
            op, check = getattr(found, overload), _CHECKS.get(packet)
            return _without_output_size(op) if check is None else _guarded(op, check)
    raise FileDamagedError(
        f"the graph calls {name[:100]!r}, which is not among the operations that a bundle may call."
    )


def _without_output_size(op: Any) -> Callable[..., Any]:
    """Returns the operation; `repeat_interleave` loses its argument `output_size`.

    With a wrong `output_size` torch writes beyond the end of the result's memory.
    """
    if not str(op).startswith("aten.repeat_interleave."):
        return op

    def repeat_interleave(*args: Any, output_size: object = None, **kwargs: Any) -> Tensor:
        return op(*args, **kwargs)

    repeat_interleave._schema = op._schema  # type: ignore[attr-defined]
    return repeat_interleave


def _allowed(name: str) -> bool:
    """Returns whether a full name is a listed operation, or the in-place form of one.

    Overloads on Python numbers and overloads of TorchScript are not allowed: some end the process
    on a zero or an invalid string. Exported graphs have none of them.
    """
    parts = name.split(".")
    if len(parts) != 3:
        return False
    packet = f"{parts[0]}.{parts[1]}"
    in_place = not packet.endswith("__") and packet.removesuffix("_") in ALLOWED
    known = (packet in ALLOWED or in_place) and (parts[1], parts[2]) not in _PACKED
    return known and _on_tensors(*parts)


def _on_tensors(space: str, packet: str, overload: str) -> bool:
    """Returns whether an overload is on tensors, or is a pure check, and has no `out` argument."""
    found = getattr(getattr(torch.ops, space), packet, None)
    if found is None or overload not in found.overloads() or overload.startswith("prim"):
        return False
    schema = getattr(found, overload)._schema
    values = [*schema.arguments, *schema.returns]
    useful = not schema.returns or any("Tensor" in str(one.type) for one in values)
    return useful and not any(one.is_out for one in schema.arguments)
