"""Zero sizes: an empty batch gives an empty result, the others are refused as torch refuses them.

``data/zero_size_torch_cpu.jsonl`` holds what torch 2.13 says on a CPU, one call a line.
"""

import builtins
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import transfuse
from transfuse.operators import OPERATORS

FACTS = [
    json.loads(line)
    for line in (Path(__file__).parent / "data/zero_size_torch_cpu.jsonl").read_text().splitlines()
]
CONVOLUTIONS = {
    1: transfuse.conv_transpose1d,
    2: transfuse.conv_transpose2d,
    3: transfuse.conv_transpose3d,
}


@pytest.mark.parametrize(
    "fact", FACTS, ids=[f"{f['ndim']}d-{f['case']}-{f['dtype'].split('.')[1]}" for f in FACTS]
)
def test_as_torch(fact: dict[str, Any]) -> None:
    dtype = getattr(torch, fact["dtype"].removeprefix("torch."))
    x, weight = (torch.ones(fact[name], dtype=dtype) for name in ("x", "w"))
    options = {name: fact[name] for name in ("stride", "padding", "output_padding")}
    convolve = CONVOLUTIONS[fact["ndim"]]
    if fact["case"] == "batch0":
        y = convolve(x, weight, **options)
        assert fact["torch"] == f"shape {list(y.shape)} sum 0"
        assert y.dtype == dtype
    else:
        error = getattr(builtins, fact["torch"].partition(":")[0])
        with pytest.raises(error, match=r"must be at least 1, but got .*\b0\b"):
            convolve(x, weight, **options)


def test_all_facts_are_there() -> None:
    assert len(FACTS) == 45


@pytest.mark.parametrize("name", ["small", "ragged"])
@pytest.mark.parametrize("slug", OPERATORS)
def test_empty_batch_of_an_operator(slug: str, name: str, given: Callable[..., Any]) -> None:
    one = given(slug, name)
    none = replace(
        one, case=replace(one.case, problem=replace(one.case.problem, batch=0)), x=one.x[:0]
    )
    shape = (0, *one.function().shape[1:])
    assert none.function().shape == shape
    assert none.function(out=torch.empty(shape)).shape == shape
    none.operator.solution(**none.arguments(torch.empty(shape)))
    with pytest.raises(RuntimeError, match=rf"output of shape \[0, .*but got \[{one.x.shape[0]}, "):
        none.operator.solution(**none.arguments(one.empty()))
