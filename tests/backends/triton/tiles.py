"""A child of the tests, in which Triton interprets: pickled jobs come in, results go out.

A job is a chain's stages, a problem, tensors, and for each pass that convolves its tiles.
"""

import os
import pickle
import sys
import traceback
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transfuse.backends.triton import calls
from transfuse.backends.triton.engines import ordered
from transfuse.backends.triton.engines.portable.tiling import Tiling
from transfuse.chain import Chain
from transfuse.plan import fused
from transfuse.problem import Problem


def run(
    stages: Any, problem: Problem, filled: tuple[Any, ...], tiles: tuple[Tiling, ...]
) -> Tensor:
    chain = Chain(*stages)
    x, weight, operands = filled
    out = torch.full(chain.shapes(problem)[-1].dims, torch.nan, dtype=x.dtype)
    left = iter(tiles)
    tensors = (x, weight, operands, out)
    plan = fused(chain, problem)
    made = calls.prepare(chain, plan, *tensors, choose=lambda each, shape: next(left))
    assert next(left, None) is None, "more tiles than passes"
    calls.follow(made.launch_plan, calls.given(*tensors))
    return out


if __name__ == "__main__":
    ordered.ENGINES = ordered.ENGINES[-1:]  # the portable one, whose tiles they are
    warnings.filterwarnings("ignore")  # numpy's, on every Inf
    np.seterr(all="ignore")
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while sys.stdin.buffer.peek(1):
        try:
            answer: Any = run(*pickle.load(sys.stdin.buffer))
        except Exception:
            answer = traceback.format_exc()
        pickle.dump(answer, answers)
        answers.flush()
