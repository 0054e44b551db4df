"""Dense weights on their way to replicas: one consistent set of tensors, with a number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from ..core.errors import InputError
from ..wire import tensors
from ..wire.codec import from_bytes
from ..wire.messages import tf_serving


@dataclass(frozen=True, slots=True, eq=False)
class DenseState:
    """Weights as they were between two steps; `number` rises from one to the next."""

    number: int
    weights: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class DensePush:
    """Weights for one loaded model, told by its incarnation."""

    model: str
    incarnation: str
    publisher: str
    state: DenseState

    def to_bytes(self) -> bytes:
        """A PredictRequest whose inputs are the weights; its signature says whose they are.

        >>> import torch
        >>> push = DensePush("entry", "i1", "p1", DenseState(3, {"w": torch.ones(2)}))
        >>> read = DensePush.from_bytes(push.to_bytes())
        >>> read.model, read.incarnation, read.publisher, read.state.number
        ('entry', 'i1', 'p1', 3)
        >>> read.state.weights["w"]
        tensor([1., 1.])
        """
        request = tf_serving.PredictRequest()
        request.model_spec.name = self.model
        told = (self.incarnation, self.publisher, str(self.state.number))
        request.model_spec.signature_name = "/".join(told)
        for name, value in self.state.weights.items():
            tensors.fill(request.inputs[name], value, name=name)
        return request.SerializeToString()

    @classmethod
    def from_bytes(cls, data: bytes) -> DensePush:
        """What `to_bytes` gave."""
        request = from_bytes(tf_serving.PredictRequest, data)
        told = request.model_spec.signature_name.split("/")
        if len(told) != 3 or not told[2].isdecimal():
            raise InputError(f"dense weights of {told!r}; it must be incarnation/publisher/number.")
        weights = {name: tensors.to_torch(one, name=name) for name, one in request.inputs.items()}
        state = DenseState(int(told[2]), weights)
        return cls(request.model_spec.name, told[0], told[1], state)
