"""Children that interpret kernels or compile them; what a result is judged by."""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from transfuse import fills
from transfuse.accuracy import Oracle, longest_sum, terms
from transfuse.backends.triton import Triton
from transfuse.chain import Chain
from transfuse.problem import Problem
from transfuse.stages.reduce import Reduce

Fill = Callable[[Chain, Problem, int], tuple[Tensor, Tensor, dict[str, Tensor]]]


class Child:
    """A process of its own that does one job after another: ``child.py``, or another script."""

    def __init__(self, does: str, script: str = "child.py", **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name(script)), does],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environment},
        )

    def __call__(self, **job: Any) -> Any:
        assert self.process.stdin
        assert self.process.stdout
        pickle.dump(job, self.process.stdin)
        self.process.stdin.flush()
        try:
            done, answer = pickle.load(self.process.stdout)
        except EOFError:
            pytest.fail(f"the child ended with status {self.process.wait(10)}")
        assert done, answer
        return answer

    def close(self) -> None:
        self.process.communicate(timeout=60)


@dataclass(frozen=True)
class Interpreter:
    """The backend, its kernels run on the CPU: slow, and every access to memory guarded."""

    child: Child

    def __call__(self, chain: Chain, problem: Problem, *tensors: Any, **options: Any) -> Any:
        """The result and what was launched, or the refusal."""
        x, weight, operands = tensors
        return self.child(
            stages=chain.stages, problem=problem, x=x, weight=weight, operands=operands, **options
        )

    def right(
        self, chain: Chain, problem: Problem, fill: Fill = fills.real, seed: int = 0, **options: Any
    ) -> list[dict[str, Any]]:
        """Assert that a result is within the oracle's budget; gives what was launched.

        Results of several calls (``times``) are the same bits.
        """
        filled = fill(chain, problem, seed)
        answer = self(chain, problem, *filled, **options)
        assert "refusal" not in answer, answer["refusal"]
        first, *others = answer["results"]
        assert all(first.equal(each) for each in others)
        accuracy = oracle(chain, problem, *filled).judge(first)
        assert accuracy.ok, f"{accuracy.fault}\n  {problem}\n  {chain}\n  {answer['launches']}"
        launches: list[dict[str, Any]] = answer["launches"]
        return launches


def oracle(chain: Chain, problem: Problem, x: Tensor, w: Tensor, operands: Any) -> Oracle:
    # A sum over channels adds all their products. In float64 the oracle itself, which is torch,
    # sums as many terms as a statistic has, one after another.
    summed = any(isinstance(stage, Reduce) for stage in chain.stages)
    length = terms(chain.core(problem)) * (problem.out_channels if summed else 1)
    if problem.dtype == "fp64":
        length = max(length, longest_sum(chain, problem))
    return Oracle(chain, problem, x, w, operands, Triton().ulp(problem), length)


def child(does: str, **environment: str) -> Iterator[Child]:
    if find_spec("triton") is None:
        pytest.skip("Triton is not installed")
    process = Child(does, **environment)
    yield process
    process.close()


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Interpreter]:
    for process in child("interpret", TRITON_INTERPRET="1", OMP_NUM_THREADS="1"):
        yield Interpreter(process)


@pytest.fixture(scope="session")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    """What one worker has compiled, no other compiles again; a later run does."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    cache = str(folder / "compiled")
    yield from child("compile", TRITON_INTERPRET="0", TRITON_CACHE_DIR=cache)
