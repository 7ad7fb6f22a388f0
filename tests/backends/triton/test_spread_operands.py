"""Residuals, gates and masks inside the convolution's kernel: operands that differ along samples
or positions; results in the type that is computed in."""

from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from transfuse import fills
from transfuse.backends.triton.lower import Refused, lowered
from transfuse.chain import Chain
from transfuse.maths import where
from transfuse.plan import fused
from transfuse.problem import Problem
from transfuse.stages import (
    add,
    avg_pool,
    conv_transpose,
    group_norm,
    max_pool,
    pointwise,
    relu,
    scale,
    softmax,
)
from transfuse.stages import sum as channel_sum

from .conftest import Interpreter

gate = pointwise(lambda x, skip, mask: where(mask > 0, x * skip, skip))
LINE = "n3 ci4 co6 i5x4 k3 s2 p1"
FULL = (3, 6, 9, 7)

CASES: list[tuple[str, tuple[Any, ...], dict[str, tuple[int, ...]]]] = [
    (LINE, (add("r"),), {"r": FULL}),
    (LINE, (add("r"),), {"r": (3, 1, 1, 1)}),
    (LINE, (scale("r"), relu()), {"r": (9, 7)}),
    (LINE, (scale("r"),), {"r": (1, 6, 1, 7)}),
    (LINE, (gate("r", "m"),), {"r": FULL, "m": (1, 1, 9, 1)}),
    (LINE, (gate("r", "m"),), {"r": FULL, "m": (6,)}),
    (LINE, (max_pool(2), add("r")), {"r": (3, 6, 4, 3)}),
    (LINE, (group_norm(3), add("r"), relu()), {"r": FULL}),
    (LINE, (softmax("channels"), scale("r")), {"r": FULL}),
    (LINE, (channel_sum("channels", keepdim=True), add("r")), {"r": (3, 1, 9, 7)}),
    (LINE, (scale("r"), group_norm(2)), {"r": (3, 1, 9, 7)}),
    ("n2 ci6 co6 i5x4 k3 s2 g6", (add("r"),), {"r": (2, 6, 11, 9)}),
    ("n2 ci3 co5 i9 k4 s2 p1", (add("r"),), {"r": (2, 5, 18)}),
    ("n2 ci3 co4 i3x4x2 k3 s2", (add("r"), relu()), {"r": (2, 4, 7, 9, 5)}),
]


def case(line: str, then: tuple[Any, ...], shapes: dict[str, tuple[int, ...]]) -> Any:
    problem = Problem.parse(line)
    return Chain(conv_transpose(problem.rank, "bias"), *then).fitted(shapes), problem


@pytest.mark.parametrize(
    "machine",
    ["store", *(pytest.param(m, marks=pytest.mark.long) for m in ("resident", "recompute"))],
)
@pytest.mark.parametrize("at", range(len(CASES)))
def test_spread(at: int, machine: str, interpreter: Interpreter) -> None:
    chain, problem = case(*CASES[at])
    interpreter.right(chain, problem, machine=machine)


@pytest.mark.parametrize("tiles", [("rows", (1, 1, 1, 16), 16), ("batch", (2, 1, 2, 4), 16)])
def test_tiles(tiles: Any, interpreter: Interpreter) -> None:
    chain, problem = case(*CASES[4])
    interpreter.right(chain, problem, fills.integers, tiles=tiles)


def test_any_strides(interpreter: Interpreter) -> None:
    """A residual that lies channels last, and every other row of a larger one."""
    chain, problem = case(*CASES[0])
    x, w, operands = fills.integers(chain, problem, 0)
    right = interpreter(chain, problem, x, w, operands)["results"][0]
    last = operands["r"].to(memory_format=torch.channels_last)
    rows = torch.zeros(3, 6, 18, 7)[:, :, ::2].copy_(operands["r"])
    for other in (last, rows):
        found = interpreter(chain, problem, x, w, operands | {"r": other})["results"][0]
        assert torch.equal(found, right)


@pytest.mark.parametrize("then", [(add("r"), max_pool(2)), (add("r"), avg_pool(2))])
def test_before_a_window(then: tuple[Any, ...]) -> None:
    chain, problem = case(LINE, then, {"r": FULL})
    with pytest.raises(Refused, match="before a window it reads one value per channel"):
        lowered(chain, fused(chain, problem))


def test_before_the_convolution() -> None:
    chain = Chain(add("r"), conv_transpose(2)).fitted({"r": (3, 4, 5, 4)})
    with pytest.raises(Refused, match="before the convolution it reads one value per channel"):
        lowered(chain, fused(chain, Problem.parse(LINE)))


@pytest.mark.parametrize("dtype", ["fp16", pytest.param("bf16", marks=pytest.mark.long)])
@pytest.mark.parametrize("then", [(relu(),), (max_pool(2),), (group_norm(3), scale("b"))])
def test_results_in_the_compute_type(
    dtype: str, then: tuple[Any, ...], interpreter: Interpreter
) -> None:
    """float32 from 16-bit tensors: what is stored is not rounded."""
    problem = Problem.parse(f"{LINE} {dtype}")
    chain = Chain(conv_transpose(2, "bias"), *then)
    filled = fills.real(chain, problem, 0)
    (wide,) = interpreter(chain, problem, *filled, written=torch.float32)["results"]
    (narrow,) = interpreter(chain, problem, *filled)["results"]
    assert wide.dtype == torch.float32
    assert torch.equal(wide.to(narrow.dtype), narrow)
    assert not torch.equal(wide, narrow.float())
