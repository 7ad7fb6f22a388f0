"""Gradients of every stage, before and after the convolution, against torch's autograd."""

from inspect import signature
from random import Random

import pytest
import torch

from tests.gradients.autograd import compare
from tests.stages.test_sweeps import SPACE, drawn, operands
from transfuse import stages as s
from transfuse.chain import Chain
from transfuse.problem import Problem
from transfuse.stages import Stage
from transfuse.stages.window import ExtremumPool

ELEMENTS = [
    name
    for name in s.__all__
    if name.islower() and getattr(s, name).__module__ == "transfuse.stages.activations"
]
ARGUMENTS = {"pow": (3,), "clamp": (-0.5, 0.75), "threshold": (0.25, -1.0)}


def layer(rank: int) -> Problem:
    """A convolution of 8 channels that keeps the sizes of ``SPACE``."""
    sizes = "x".join(map(str, SPACE[rank]))
    return Problem.parse(f"n2 ci3 co8 i{sizes} k3 s1 p1 fp64")


def tensors(
    problem: Problem, env: dict[str, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(problem.input.dims, generator=generator, dtype=torch.float64)
    weight = torch.randn(problem.weight, generator=generator, dtype=torch.float64) / 4
    return x, weight, env


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("seed", [0, *(pytest.param(i, marks=pytest.mark.long) for i in (1, 2, 3))])
def test_stages_of_every_kind(rank: int, seed: int) -> None:
    problem = layer(rank)
    for stage in drawn(rank, Random(100 * rank + seed)):
        if isinstance(stage, ExtremumPool):  # rewrites make it, and gradients come before them
            continue
        env = operands(rank, seed)
        env.pop("x")
        stages = (s.square(), stage) if stage.name == "lp_pool" else (stage,)
        chain = Chain(s.conv_transpose(rank, "b"), *stages)
        chain = chain.fitted({name: tuple(each.shape) for name, each in env.items()})
        used = {name for each in chain.stages for name in each.operands}
        compare(chain, problem, tensors(problem, {k: v for k, v in env.items() if k in used}))


@pytest.mark.parametrize("name", ELEMENTS)
def test_element_stages(name: str) -> None:
    problem = Problem.parse("n2 ci3 co8 i6x5 k3 s2 p1 fp64")
    before = {"log": [s.softplus()], "sqrt": [s.softplus()], "rsqrt": [s.softplus()]}.get(name, [])
    before = [s.square(), s.add(0.5)] if name == "reciprocal" else before
    made = getattr(s, name)
    missing = [None for each in signature(made).parameters.values() if each.default is each.empty]
    stage = made(*ARGUMENTS.get(name, (0.5,) * len(missing)))
    chain = Chain(*before, stage, s.conv_transpose(2, "b"), *before, stage)
    env = {"b": torch.linspace(-1, 1, 8, dtype=torch.float64)}
    compare(chain, problem, tensors(problem, env))


SHAPES = [(8,), (8, 1, 1), (2, 1, 1, 1), (2, 8, 11, 9), (11, 9), (1, 9), (1, 8, 1, 9), (1, 1, 1)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("make", [s.add, s.scale, s.maximum, s.prelu, s.div], ids=lambda m: m.name)
def test_operands_of_every_shape(shape: tuple[int, ...], make: s.pointwise) -> None:
    problem = Problem.parse("n2 ci3 co8 i6x5 k3 s2 p1 fp64")
    generator = torch.Generator().manual_seed(2)
    env = {"t": torch.randn(shape, generator=generator, dtype=torch.float64)}
    env["t"] += env["t"].sign()  # not next to 0, where a quotient is huge
    chain = Chain(s.conv_transpose(2), s.tanh(), make("t"), s.sigmoid())
    compare(chain.fitted({"t": shape}), problem, tensors(problem, env))


def test_an_operand_in_several_places() -> None:
    problem = Problem.parse("n2 ci8 co8 i6x5 k3 s1 p1 fp64")
    env = {"t": torch.linspace(-1, 1, 8, dtype=torch.float64)}
    chain = Chain(
        s.add("t"), s.conv_transpose(2, "t"), s.scale("t"), s.max_pool(2), s.sub("t"), s.prelu("t")
    )
    compare(chain, problem, tensors(problem, env))


def test_a_stage_that_is_larger_than_a_kernel_takes() -> None:
    problem = Problem.parse("n2 ci3 co8 i4x5 k3 s2 p1 fp64")
    env = {"t": torch.linspace(-1, 1, 8, dtype=torch.float64)}
    chain = Chain(s.conv_transpose(2), s.mish(), s.gelu(), s.mish(), s.scale("t"), s.mish())
    compare(chain, problem, tensors(problem, env))


def test_every_public_stage_is_here() -> None:
    public = {name for name in s.__all__ if name.islower()}
    named: set[str] = {stage.name for stage in drawn(2, Random(0)) if isinstance(stage, Stage)}
    assert public <= named | set(ELEMENTS) | {"conv_transpose", "pointwise"}
