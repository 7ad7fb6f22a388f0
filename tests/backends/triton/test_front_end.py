"""What the front end of Triton does for a kernel, counted: no loop around a body may double it.

The front end goes through the body of a loop twice, and so through the body of five loops 32 times;
through a function, once. Seconds would depend on the machine, visits do not.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from triton.compiler.code_generator import CodeGenerator
from triton.compiler.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

from transfuse.elements import ELEMENTS
from transfuse.operators import OPERATORS

from .test_launch_plan import planned

MOST = 2.5
"""Visits for each node of each function that is compiled."""


class Done(Exception):
    """The front end has done its work: nothing is compiled any further."""


@pytest.fixture
def visits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Counter[Any]:
    """How often each node was visited, for each function that is compiled."""
    found: Counter[Any] = Counter()
    visit = CodeGenerator.visit

    def counted(self: Any, node: Any) -> Any:
        found[self, node] += 1
        return visit(self, node)

    def only(make_ir: Any) -> Any:
        def made(*given: Any, **options: Any) -> Any:
            make_ir(*given, **options)
            raise Done

        return made

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(CodeGenerator, "visit", counted)
    for source in (ASTSource, GluonASTSource):
        monkeypatch.setattr(source, "make_ir", only(source.make_ir))
    return found


@pytest.mark.parametrize("slug", OPERATORS)
def test_bodies_of_loops_are_not_visited_over_and_over(slug: str, visits: Counter[Any]) -> None:
    case = OPERATORS[slug].case("benchmark").on("fp16", "cuda")
    chain, problem = OPERATORS[slug].bound(case), case.problem
    made = planned(chain, problem, real=True)

    def meta(*dims: int, dtype: torch.dtype = ELEMENTS[problem.dtype].dtype) -> torch.Tensor:
        return torch.empty(dims, dtype=dtype, device="meta")

    memory = [meta(*problem.input.dims), meta(*problem.weight)]
    memory += [meta(*chain.shapes(problem)[-1].dims)]
    memory += [meta(*dims) for _, dims in chain.dims(problem)]
    memory += [meta(size, dtype=dtype) for _, size, dtype in made.scratch]
    for launch in made.launches:
        build = launch.build(memory, 90)
        visits.clear()
        with pytest.raises(Done):
            assert build.compiled
        name = launch.kernel.name
        assert len(visits) > 100, f"{name}: visits are not counted"
        assert visits.total() <= MOST * len(visits), f"{name}: {visits.total()} of {len(visits)}"
