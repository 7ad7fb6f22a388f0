"""The C functions take the steps that Python's planner takes, whatever numbers a call brings."""

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from math import inf, nan
from random import Random
from typing import Any

import pytest
import torch

from transfuse.accuracy import Oracle
from transfuse.backends.cpu import library
from transfuse.cases import Case
from transfuse.cfunctions.function import CFunction
from transfuse.cfunctions.ways import Branch
from transfuse.chain import Chain
from transfuse.elements import ELEMENTS
from transfuse.operators import OPERATORS, Operator
from transfuse.problem import DTYPES
from transfuse.problems import parse
from transfuse.rewrite import rewritten
from transfuse.stages import (
    add,
    avg_pool,
    batch_norm,
    clamp,
    conv_transpose,
    group_norm,
    leaky_relu,
    max_pool,
    scale,
    sigmoid,
    softmax,
    tanh,
)
from transfuse.stages import sum as channel_sum

from .calling import Functions

SIZES = ["batch_size", "in_channels", "out_channels"]
built = pytest.mark.skipif(library.path() is None, reason="the compiled core is not installed")


def operator(name: str, chain: Chain, tensors: str, scalars: dict[str, str]) -> Operator:
    """An operator with a document of its own; every option of the convolution is a parameter."""
    rank = chain.conv.rank
    axes = "dhw"[3 - rank :]
    spatial = ["depth", "height", "width"][3 - rank :]
    options = ("kernel", "stride", "padding", "dilation", "output_padding")
    kinds = dict.fromkeys([*SIZES, *spatial], "size_t") | scalars
    kinds |= {f"{option}_{axis}": "size_t" for option in options for axis in axes}
    kinds |= {"groups": "int64_t"}
    rows = [
        f"- {{name: {each}, type: '[VAR]', pointer: true, const: true}}" for each in tensors.split()
    ]
    rows += ["- {name: result, type: '[VAR]', pointer: true, const: false}"]
    rows += [f"- {{name: {each}, type: {kind}, pointer: false}}" for each, kind in kinds.items()]
    head = f"slug: {name}\ntitle: A test\ndifficulty: EASY\nauthor: a test\ntags: []"
    text = "\n".join(["---", head, "parameters:", *rows, "---", "A test."])
    return Operator(name, chain, document=parse(text, name))


MADE = {
    each.slug: each
    for each in (
        operator(
            "pools-and-factors",
            Chain(
                avg_pool("before"),
                conv_transpose(1, bias="bias"),
                scale("factor"),
                add("term"),
                max_pool("first"),
                max_pool("second"),
                clamp("low", "high"),
                softmax("space"),
            ),
            "signal taps bias",
            {"before": "int", "factor": "double", "term": "double", "first": "size_t"}
            | {"second": "int64_t", "low": "double", "high": "double"},
        ),
        operator(
            "norm-then-pool",
            Chain(
                conv_transpose(2, bias="bias"),
                leaky_relu("slope"),
                group_norm("parts", "weight_of_norm"),
                max_pool("window"),
                sigmoid(),
            ),
            "signal taps bias weight_of_norm",
            {"slope": "double", "parts": "size_t", "window": "size_t"},
        ),
        operator(
            "batch-then-sum",
            Chain(
                max_pool(2),
                max_pool("more"),
                conv_transpose(3),
                batch_norm(bias="bias", training=True),
                tanh(),
                max_pool("window"),
                channel_sum("channels", keepdim=True),
                scale("last"),
                add("offset"),
            ),
            "signal taps bias last",
            {"more": "size_t", "window": "size_t", "offset": "double"},
        ),
    )
}
CASES = {
    "pools-and-factors": [
        f"n2 ci4 co6 i40 k3 s2 p1 g2 before={before} factor={factor} term={term} first={first} "
        f"second={second} low={low} high={high}"
        for (before, first, second), (factor, term), (low, high) in product(
            [(1, 2, 3), (2, 1, 1), (3, 3, 2)],
            [(0.5, 0.25), (-2, 1), (0, 0)],
            [(-1, 1), (-60, 60), (5, -5)],
        )
    ],
    "norm-then-pool": [
        "n2 ci3 co6 i5x7 k3x2 s2x1 d1x2 slope=0.2 parts=3 window=2",
        "n2 ci4 co8 i6x5 k3 s2 p1 op1 g2 slope=-1 parts=1 window=1",
        "n1 ci24 co16 i60x60 k3 s2 p1 slope=0 parts=2 window=3",
    ],
    "batch-then-sum": [
        "n2 ci3 co4 i8x10x7 k3 s2 p1 more=1 window=2 offset=1",
        "n3 ci2 co5 i13x9x16 k2 s1 more=2 window=3 offset=-0.5",
    ],
}


# ---- the same steps ----------------------------------------------------------------------------

NUMBERS = [0.0, -0.0, 1.0, -1.0, 0.5, 39.0, -39.0, 41.0, -41.0, 1e-40, 3e38, 1e300, inf, -inf, nan]


def answered(found: Any, values: dict[str, Any]) -> Any:
    """What a tree of questions comes to for these numbers, C++'s expressions read as Python's."""
    while isinstance(found, Branch):
        found = found.yes if evaluated(found.question, values) else found.no
    return found


def evaluated(text: str, values: dict[str, Any]) -> Any:
    names = {
        "INFINITY": inf,
        "int64_t": int,
        "double": float,
        "smaller": lambda a, b: a if a < b or a != a else b,
        "larger": lambda a, b: a if a > b or a != a else b,
    }
    return eval(text.replace("std::abs", "abs"), names | values)


def operations(steps: tuple[str, ...]) -> list[str]:
    return [re.findall(r"TF_(\w+)", each)[0].lower() for each in steps]


@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize("made", [*OPERATORS.values(), *MADE.values()], ids=lambda each: each.slug)
def test_the_steps_for_any_numbers_are_pythons(made: Operator, finite: bool) -> None:
    """For many numbers of each kind, special ones among them."""
    random, function = Random(0), CFunction(made)
    for _ in range(300):
        values: dict[str, Any] = {
            p.name: random.choice(NUMBERS if p.type == "double" else range(1, 10))
            for p in made.scalars
        }
        chain = rewritten(made.chain.bind(values), finite or not made.operands)
        got = answered(function._programs, {**values, "finite": finite})
        wanted = [each.op for _, each in function._steps(chain)]
        assert operations(got.steps) == wanted, values
        assert evaluated(got.factor or "1", values) == chain.conv.weight_scale, values


# ---- the same results --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Functions]:
    kept: dict[str, Functions] = {}

    def made(slug: str) -> Functions:
        if slug not in kept:
            kept[slug] = Functions(MADE[slug], tmp_path_factory.mktemp(slug))
        return kept[slug]

    return made


@built
@pytest.mark.parametrize(
    ("slug", "line", "dtype"),
    [(slug, line, DTYPES[i % 4]) for slug in CASES for i, line in enumerate(CASES[slug])],
)
def test_results(
    slug: str,
    line: str,
    dtype: str,
    functions: Callable[[str], Functions],
    given: Callable[..., Any],
) -> None:
    """The oracle's, and the bits of Python's own call."""
    one = given(MADE[slug], f"{line} {dtype}")
    y = one.empty()
    assert functions(slug)(dtype, one.arguments(y)) == ""
    chain, problem = one.operator.bound(one.case), one.case.problem
    ulp = torch.finfo(ELEMENTS[dtype].compute).eps
    assert not Oracle(chain, problem, one.x, one.weight, one.operands, ulp).judge(y).fault
    assert torch.equal(y, one.function(backend="cpu"))


@built
@pytest.mark.parametrize("bounds", [(nan, 1.0), (0.0, nan), (-inf, inf), (1.0, -inf)], ids=str)
def test_bounds_that_are_not_numbers(
    bounds: tuple[float, float], functions: Callable[[str], Functions], given: Callable[..., Any]
) -> None:
    one = given(MADE["pools-and-factors"], CASES["pools-and-factors"][0])
    scalars = one.case.scalars | dict(zip(("low", "high"), bounds, strict=True))
    one = replace(one, case=Case(one.case.problem, scalars))
    y = one.empty().zero_()
    assert functions("pools-and-factors")("fp32", one.arguments(y)) == ""
    assert y.isnan().all() == (bounds != (-inf, inf))
    assert torch.equal(y.nan_to_num(), one.function(backend="cpu").nan_to_num())
