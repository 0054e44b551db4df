"""Small models that are served in tests."""

from __future__ import annotations

import torch

from hedgerow.serving.model import Model, Signature, Tensors, TensorSpec

FLOATS = TensorSpec(torch.float32, (None,))
MATRIX = TensorSpec(torch.float32, (None, 2))
IDS = TensorSpec(torch.int64, (None,))


def double(inputs: Tensors) -> Tensors:
    return {"y": inputs["x"] * 2}


def both(inputs: Tensors) -> Tensors:
    return {"sum": inputs["x"] + inputs["id"], "id": inputs["id"]}


def matrix(inputs: Tensors) -> Tensors:
    return {"y": inputs["x"].flip(1), "total": inputs["x"].sum()}


def broken(inputs: Tensors) -> Tensors:
    raise RuntimeError("the disk is on fire")


def demo(version: int = 3, name: str = "demo") -> Model:
    """Signatures of one and of several inputs and outputs, and one that fails."""
    flag = TensorSpec(torch.bool, (None,))
    return Model(
        name,
        version,
        {
            "serving_default": Signature({"x": FLOATS}, {"y": FLOATS}, double),
            "both": Signature({"x": FLOATS, "id": IDS}, {"sum": FLOATS, "id": IDS}, both),
            "ids": Signature({"x": IDS}, {"y": IDS}, double),
            "flags": Signature({"x": flag}, {"y": flag}, lambda inputs: {"y": ~inputs["x"]}),
            "matrix": Signature(
                {"x": MATRIX}, {"y": MATRIX, "total": TensorSpec(torch.float32, ())}, matrix
            ),
            "broken": Signature({"x": FLOATS}, {"y": FLOATS}, broken),
        },
    )
