"""Sweeps in Triton: in the interpreter against their definition, and as machine code."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from transfuse.backends.triton.sweeps import fold, prepare
from transfuse.maths.expr import parse
from transfuse.sweeps import Each, Fold, Slide, Sweep, View

from ...random_sweeps import FOLDINGS, KINDS, Drawn, drawn, judge
from .conftest import Child

EXACT = ("each", "sum", "max", "min", "slide max", "slide sum", "slide sign")
"""Kinds whose results are bit for bit those of exact arithmetic, on small integers."""


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Child]:
    child = Child("interpret", "swept.py", TRITON_INTERPRET="1", OMP_NUM_THREADS="1")
    yield child
    child.close()


def swept(interpreter: Child, given: Drawn, exact: bool = False) -> list[str]:
    """Assert that a sweep is right, and gives the same bits again; the kernels launched."""
    answer = interpreter(sweep=given.sweep, slots=given.slots)
    first, second = answer["slots"]
    judge(given, first, exact)
    pairs = zip(first, second, strict=True)
    assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in pairs)
    launches: list[str] = answer["launches"]
    return launches


def seeds(quick: int, all_: int) -> list[Any]:
    long = [pytest.param(seed, marks=pytest.mark.long) for seed in range(quick, all_)]
    return [*range(quick), *long]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", seeds(2, 20))
def test_integers(kind: str, seed: int, interpreter: Child) -> None:
    swept(interpreter, drawn(seed, kind, "integers"), exact=kind in EXACT)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", seeds(1, 20))
@pytest.mark.parametrize("fill", ["real", "special"])
def test_values(kind: str, seed: int, fill: str, interpreter: Child) -> None:
    swept(interpreter, drawn(seed, kind, fill))
