"""An operator's case with its tensors, and every way to call it."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from math import prod, sqrt
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
import torch
from hypothesis import settings
from torch import Tensor

from transfuse.cases import Case
from transfuse.elements import ELEMENTS
from transfuse.operators import OPERATORS, Operator
from transfuse.problem import AXES
from transfuse.reference import reference

# What was tuned or compiled on this machine is no part of a test.
os.environ["TRANSFUSE_TUNED"] = os.path.join(os.devnull, "none.json")
os.environ["TRANSFUSE_KERNELS"] = os.path.join(os.devnull, "kernels")

# The same draws at every run: what fails comes from what changed. New ones where asked for.
settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None)
settings.load_profile("same")

INTERPRETED = Path(__file__).parent / "backends" / "triton"
QUICK = 4
"""Of the cases in Triton's interpreter one in so many is quick."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What drives a browser is long, and most cases in an interpreter; all else says so itself."""
    for item in items:
        sampled = "[" in item.name and INTERPRETED in item.path.parents
        left_out = sampled and crc32(item.name.encode()) % QUICK
        if left_out or "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.long)


@pytest.fixture(autouse=True)
def same_values(request: pytest.FixtureRequest) -> None:
    """Each test draws the same values, whichever ran before it in the same process."""
    torch.manual_seed(crc32(request.node.nodeid.encode()))


@dataclass(frozen=True)
class Given:
    operator: Operator
    case: Case
    x: Tensor
    weight: Tensor
    operands: dict[str, Tensor]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.x, self.weight, *self.operands.values()

    @property
    def options(self) -> dict[str, Any]:
        """The keywords of the torch-style call."""
        names = [*self.operator.options, *(["groups"] if self.operator.grouped else [])]
        return {name: getattr(self.case.problem, name) for name in names} | self.case.scalars

    def function(self, *tensors: Tensor, **changes: Any) -> Tensor:
        """The torch-style call; on other tensors, if given."""
        return self.operator(*(tensors or self.tensors), **(self.options | changes))

    def arguments(self, output: object) -> dict[str, Any]:
        """The document's arguments by name, in its order, written out from the problem."""
        document, problem = self.operator.document, self.case.problem
        values: dict[str, Any] = {
            "batch_size": problem.batch,
            "in_channels": problem.in_channels,
            "out_channels": problem.out_channels,
            "groups": problem.groups,
            document.output.name: output,
            **self.case.scalars,
        }
        values |= zip(AXES[problem.rank], problem.spatial, strict=True)
        values |= zip((p.name for p in document.inputs), self.tensors, strict=True)
        for option in ("kernel", "stride", "padding", "output_padding", "dilation"):
            names = (f"{option}_{axis}" for axis in "dhw"[-problem.rank :])
            values |= zip(names, getattr(problem, option), strict=True)
        return {p.name: values[p.name] for p in document.parameters}

    def empty(self) -> Tensor:
        """An output that nothing has been written to: NaN."""
        shape = self.operator.bound(self.case).shapes(self.case.problem)[-1]
        return torch.full(shape.dims, torch.nan, dtype=self.x.dtype)

    def exact(self) -> Tensor:
        """The float64 oracle."""
        chain = self.operator.bound(self.case)
        return reference(chain, self.case.problem, self.x, self.weight, self.operands)


def _given(operator: str | Operator, line: str, seed: int = 0) -> Given:
    """A case on signed normal numbers; the convolution's outputs are near 1."""
    operator = OPERATORS[operator] if isinstance(operator, str) else operator
    case = operator.case(line)
    problem = case.problem
    generator = torch.Generator().manual_seed(seed)

    def tensor(*dims: int, scale: float = 1.0) -> Tensor:
        normal = torch.randn(dims, generator=generator, dtype=torch.float64)
        return (normal * scale).to(ELEMENTS[problem.dtype].dtype)

    terms = problem.in_channels // problem.groups * prod(problem.kernel) / prod(problem.stride)
    x, weight = tensor(*problem.input.dims), tensor(*problem.weight, scale=1 / sqrt(terms))
    dims = dict(operator.bound(case).dims(problem))
    return Given(operator, case, x, weight, {n: tensor(*dims[n]) for n in operator.operands})


@pytest.fixture
def given() -> Callable[..., Given]:
    return _given


@pytest.fixture
def command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run ``transfuse`` with some words; gives exit status, stdout, stderr."""
    from transfuse.cli import main

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["transfuse", *words])
        try:
            main()
            status = 0
        except SystemExit as stop:
            status = int(stop.code or 0)
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run
