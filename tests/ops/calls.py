"""Operations to call: every stage of the vocabulary, and the five operators, with their tensors."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from transfuse import fills
from transfuse.chain import Chain
from transfuse.line import operands, split
from transfuse.operators import OPERATORS
from transfuse.problem import Problem
from transfuse.report.support import EXAMPLES
from transfuse.stages import conv_transpose
from transfuse.stages.text import KNOWN, parse

SIZES = "n2 ci3 co4 i4x5 k3 s2 p1"


def arguments(chain: Chain, problem: Problem, tensors: Any, backend: str = "") -> tuple[Any, ...]:
    """The arguments of ``torch.ops.transfuse.chain``."""
    x, weight, named = tensors
    line, numbers = split(chain)
    sizes = (problem.stride, problem.padding, problem.output_padding, problem.dilation)
    given = (numbers, line, *map(list, sizes), problem.groups, problem.precision, backend)
    return (x, weight, [named[name] for name in operands(chain)], *given)


def stages() -> Iterator[tuple[str, Chain, Problem]]:
    """The convolution with each stage behind it, in every form that the support page shows."""
    problem = Problem.parse(f"{SIZES} fp64 cpu")
    shape = problem.output()
    named = {"channel": (shape.c,), "full": shape.dims, "gate": (shape.n, 1, *shape.spatial)}
    yield "conv_transpose", Chain(conv_transpose(2, "bias")), problem
    for name in KNOWN:
        for text in EXAMPLES.get(name, (name,)):
            text = text.replace("group_norm(8", "group_norm(2")
            (stage,) = parse(text)
            yield text, Chain(conv_transpose(2, "bias"), stage).fitted(named), problem


def operators() -> Iterator[tuple[str, Chain, Problem]]:
    for slug, operator in OPERATORS.items():
        case = operator.case("small").on("fp64", "cpu")
        yield slug, operator.bound(case), case.problem


CASES = {name: (chain, problem) for name, chain, problem in (*stages(), *operators())}


def tensors(name: str, seed: int = 0) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Values of a case: positive where the stage takes roots or logarithms."""
    chain, problem = CASES[name]
    x, weight, given = fills.real(chain, problem, seed)
    named = dict(given)
    if any(word in name for word in ("sqrt", "log", "reciprocal", "lp_pool")):
        x, weight = x.abs() + 0.5, weight.abs() + 0.5
        named = {key: value.abs() + 0.5 for key, value in named.items()}
    for stage in chain.stages:
        if getattr(stage, "running_var", None) is not None and not stage.updates:
            named[stage.running_var] = named[stage.running_var].abs() + 0.5  # type: ignore[attr-defined]
    return x, weight, named


def learnt(chain: Chain) -> list[bool]:
    """Which operands may require grad: running statistics may not, in torch either."""
    kept = {
        getattr(stage, f"running_{word}", None)
        for stage in chain.stages
        for word in ("mean", "var")
    }
    return [name not in kept for name in operands(chain)]


def learning(chain: Chain, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same arguments, of tensors that require gradients where they may."""
    x, weight, others, *rest = given
    copies = [
        each.detach().clone(memory_format=torch.preserve_format) for each in (x, weight, *others)
    ]
    for each, wants in zip(copies, (True, True, *learnt(chain)), strict=True):
        each.requires_grad_(wants)
    return (*copies[:2], copies[2:], *rest)
