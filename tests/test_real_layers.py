"""The transposed convolutions of 115 layers of published models, made small, bit for bit.

Integers: every sum is exact in float32, and 16-bit results are those sums rounded once.
"""

import json
from importlib.resources import files
from math import ceil
from typing import Any

import pytest
import torch
from torch import Tensor

import transfuse
from transfuse.elements import ELEMENTS
from transfuse.problem import Problem
from transfuse.reference import scatter

FACTS = files("transfuse.bench") / "real_layers.jsonl"
LAYERS = [json.loads(line) for line in FACTS.read_text(encoding="utf-8").splitlines()]
assert len(LAYERS) == 115
CHANNELS = 12
SPATIAL = {1: 9, 2: 7, 3: 5}


def problem(layer: dict[str, Any]) -> Problem:
    """The layer with its own geometry, on a small input; its channels keep their ratio."""
    shrink = max(1, ceil(max(layer["in_channels"], layer["out_channels"]) / CHANNELS))
    return Problem(
        batch=min(layer["batch"], 2),
        in_channels=ceil(layer["in_channels"] / shrink),
        out_channels=ceil(layer["out_channels"] / shrink),
        spatial=tuple(min(n, SPATIAL[layer["ndim"]]) for n in layer["spatial"]),
        groups=layer["groups"],
        **{
            name: tuple(layer[name])
            for name in ("kernel", "stride", "padding", "dilation", "output_padding")
        },
    )


def integers(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randint(-3, 4, shape, generator=generator).double()


@pytest.mark.parametrize("layer", LAYERS, ids=[f"{a['model']} {a['layer']}" for a in LAYERS])
def test_layer(layer: dict[str, Any]) -> None:
    small = problem(layer)
    x, weight = integers(*small.input.dims), integers(*small.weight)
    bias = integers(small.out_channels) if layer["bias"] else None
    exact = scatter(small, x, weight, bias)
    assert exact.count_nonzero() > 0
    for element in ELEMENTS.values():
        y = transfuse.conv_transpose(
            x.to(element.dtype),
            weight.to(element.dtype),
            bias if bias is None else bias.to(element.dtype),
            stride=small.stride,
            padding=small.padding,
            dilation=small.dilation,
            output_padding=small.output_padding,
            groups=small.groups,
        )
        assert y.equal(exact.to(element.dtype)), f"{small} {element.name}"
