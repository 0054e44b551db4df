"""KeyedJaggedTensors of one batch size and of several: read right, or refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import hedgerow as hr
from hedgerow.core.errors import DtypeError, InputError


class Jagged:
    """The methods of TorchRec's KeyedJaggedTensor that say how it is cut."""

    def __init__(
        self,
        features: dict[str, list[list[int]]],
        inverse: tuple[list[str], Tensor] | None = None,
        weights: Tensor | None = None,
    ) -> None:
        self._features, self._inverse, self._weights = features, inverse, weights

    def keys(self) -> list[str]:
        return list(self._features)

    def values(self) -> Tensor:
        return torch.tensor([i for bags in self._features.values() for bag in bags for i in bag])

    def offsets(self) -> Tensor:
        lengths = [len(bag) for bags in self._features.values() for bag in bags]
        return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0).to(torch.int32)

    def weights_or_none(self) -> Tensor | None:
        return self._weights

    def stride_per_key(self) -> list[int]:
        return [len(bags) for bags in self._features.values()]

    def variable_stride_per_key(self) -> bool:
        return len(set(self.stride_per_key())) > 1

    def inverse_indices_or_none(self) -> tuple[list[str], Tensor] | None:
        return self._inverse


def lists(batch: hr.IdBatch) -> dict[str, list[list[int]]]:
    return {name: batch.feature(name).to_lists() for name in batch.names}


VARIABLE = {"a": [[1], [2, 3]], "b": [[4], [], [5, 6], [7]]}  # strides 2 and 4: six bags


def test_bags_that_differ_in_number_are_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"\(a: 2, b: 4\) and no inverse_indices"):
        hr.IdBatch.from_kjt(Jagged(VARIABLE))


def test_every_sample_gets_the_bag_that_inverse_indices_say() -> None:
    inverse = torch.tensor([[3, 2, 0, 0, 1], [1, 0, 0, 1, 1]], dtype=torch.int32)
    weights = torch.arange(7.0, dtype=torch.float64).requires_grad_()
    batch = hr.IdBatch.from_kjt(Jagged(VARIABLE, (["b", "a"], inverse), weights))
    assert lists(batch) == {
        "a": [[2, 3], [1], [1], [2, 3], [2, 3]],
        "b": [[7], [5, 6], [4], [4], []],
    }
    found = batch.weights_of("b")
    assert found is not None
    assert found.tolist() == [6.0, 4.0, 5.0, 3.0, 3.0]
    found.sum().backward()
    assert weights.grad is not None
    assert weights.grad.tolist() == [0, 0, 0, 2, 1, 1, 1]


def test_equal_strides_with_inverse_indices_are_expanded_too() -> None:
    both = {"a": [[1], [2]], "b": [[3], []]}
    inverse = torch.tensor([[0, 1, 1], [1, 1, 0]])
    batch = hr.IdBatch.from_kjt(Jagged(both, (["a", "b"], inverse)))
    assert lists(batch) == {"a": [[1], [2], [2]], "b": [[], [], [3]]}
    assert lists(hr.IdBatch.from_kjt(Jagged(both))) == both
    assert lists(hr.IdBatch.from_kjt(Jagged(both, ([], torch.empty(0))))) == both


@pytest.mark.parametrize("seed", range(40))
def test_vectors_are_those_of_distinct_bags_picked_by_inverse_indices(seed: int) -> None:
    """What TorchRec's modules do: they pool distinct bags, then give each sample its vector."""
    draw = torch.Generator().manual_seed(seed)

    def whole(least: int, most: int) -> int:
        return int(torch.randint(least, most + 1, (1,), generator=draw))

    samples, names = whole(0, 6), ["a", "b", "c"]
    strides = [whole(1, 5) for _ in names]
    features = {
        name: [[whole(-9, 9) for _ in range(whole(0, 3))] for _ in range(stride)]
        for name, stride in zip(names, strides, strict=True)
    }
    inverse = torch.stack([torch.randint(s, (samples,), generator=draw) for s in strides])
    count = sum(len(bag) for bags in features.values() for bag in bags)
    weights = torch.rand(count, generator=draw) if seed % 2 else None
    jagged: Any = Jagged(features, (names, inverse), weights)
    bags = hr.EmbeddingBags([hr.Table("t", 2, features=names)], init=hr.Uniform(1.0), seed=1)
    found = bags(hr.IdBatch.from_kjt(jagged)) if samples else {}
    parts = torch.ones(count) if weights is None else weights
    first = 0
    for number, name in enumerate(names):
        own = parts[first : first + sum(map(len, features[name]))]
        first += len(own)
        split = [w.tolist() for w in own.split([len(bag) for bag in features[name]])]
        alone = hr.IdBatch.from_lists({name: features[name]}, {name: split})
        if samples:
            wanted = bags(alone, [name])[name][inverse[number]]
            torch.testing.assert_close(found[name], wanted)


class Wrong(Jagged):
    def stride_per_key(self) -> list[int]:
        return [2, 3]


def test_what_does_not_add_up_is_refused() -> None:
    with pytest.raises(InputError, match=r"strides \[2, 3\], and offsets of 6 bags"):
        hr.IdBatch.from_kjt(Wrong(VARIABLE))
    inverse = torch.tensor([[0, 2]])
    with pytest.raises(InputError, match="no row for key 'b'; they have a"):
        hr.IdBatch.from_kjt(Jagged(VARIABLE, (["a"], inverse)))
    with pytest.raises(InputError, match=r"'a' go from 0 to 2; the feature has bags 0\.\.1"):
        hr.IdBatch.from_kjt(Jagged(VARIABLE, (["a", "b"], inverse.repeat(2, 1))))
    with pytest.raises(InputError, match=r"shape \(1, 2\) for 2 keys"):
        hr.IdBatch.from_kjt(Jagged(VARIABLE, (["a", "b"], inverse)))


class Floats(Jagged):
    def values(self) -> Tensor:
        return super().values() + 0.5


def test_ids_that_are_no_whole_numbers_are_refused() -> None:
    with pytest.raises(DtypeError, match=r"dtype torch\.float32; ids are whole numbers"):
        hr.IdBatch.from_kjt(Floats(VARIABLE))
