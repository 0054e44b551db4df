from __future__ import annotations

import pytest
import torch

from hedgerow.core import checks
from hedgerow.core.errors import ConfigError, DtypeError, HedgerowError, InputError


def _refusal(error: type[Exception], call: object, *args: object, **kwargs: object) -> str:
    with pytest.raises(error) as caught:
        call(*args, **kwargs)  # type: ignore[operator]
    assert isinstance(caught.value, HedgerowError)
    return str(caught.value)


def test_a_tensor_of_another_type_is_named_with_its_fix() -> None:
    text = _refusal(DtypeError, checks.tensor, "ids", [1, 2], torch.int64, (None,))
    assert "ids is a list" in text
    assert "torch.tensor(" in text
    text = _refusal(DtypeError, checks.tensor, "ids", torch.ones(2), torch.int64, (None,))
    assert "torch.float32" in text
    assert ".to(torch.int64)" in text


def test_shape_layout_device_and_strides_are_checked() -> None:
    square = torch.zeros(3, 4)
    assert "(3, 4)" in _refusal(InputError, checks.tensor, "x", square, torch.float32, (3, 5))
    assert "contiguous" in _refusal(InputError, checks.tensor, "x", square.T, torch.float32, (4, 3))
    sparse = square.to_sparse()
    assert "to_dense" in _refusal(InputError, checks.tensor, "x", sparse, torch.float32, (3, 4))
    meta = torch.zeros(3, 4, device="meta")
    assert "meta" in _refusal(InputError, checks.tensor, "x", meta, torch.float32, (3, 4))


@pytest.mark.parametrize("value", [-1, 2**63])
def test_counts_stay_in_64_bits(value: int) -> None:
    assert str(value) in _refusal(InputError, checks.count, "step", value)


@pytest.mark.parametrize("value", [True, 1.5, "3", None])
def test_counts_are_whole_numbers(value: object) -> None:
    assert repr(value) in _refusal(DtypeError, checks.count, "step", value)


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
def test_rates_are_finite_and_not_negative(value: float) -> None:
    assert "rate" in _refusal(InputError, checks.rate, "rate", value)


def test_settings_say_every_bound() -> None:
    text = _refusal(ConfigError, checks.setting, "Adam", "beta", 1.0, least=0, below=1)
    assert text == "Adam.beta is 1.0; it must be finite and at least 0 and below 1."


def test_unknown_names_come_with_the_nearest_known_one() -> None:
    with pytest.raises(KeyError, match="Did you mean 'adagrad'"):
        checks.unknown("optimizer", "adagard", ["adam", "adagrad"])
