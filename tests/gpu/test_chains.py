"""Chains drawn by seed, on a GPU: its kernels serve every one to the last stage, and are right."""

from dataclasses import replace

import pytest
import torch

from transfuse import draws, fills
from transfuse.accuracy import Oracle
from transfuse.backends.triton import Triton
from transfuse.tensors import describe

KINDS = ("fp32", "tf32", "fp16", "bf16", "fp64")


@pytest.mark.parametrize("seed", range(40))
def test_drawn_chains(seed: int) -> None:
    kind = KINDS[seed % len(KINDS)]
    dtype = "fp32" if kind == "tf32" else kind
    chain, problem = draws.drawn(seed, dtype=dtype, device="cuda")
    x, weight, operands = fills.real(chain, problem, seed)
    precision = "tf32" if kind == "tf32" else "ieee"
    problem = replace(problem, device=describe(x)["device"], precision=precision)
    assert Triton().verdict(chain, problem).ok
    assert not Triton().route(chain, problem).rest
    y = Triton().run(chain, problem, x, weight, operands)
    again = Triton().run(chain, problem, x, weight, operands)
    accuracy = Oracle(chain, problem, x, weight, operands, Triton().ulp(problem)).judge(y)
    assert accuracy.ok, f"{accuracy.fault}\n  {problem}\n  {chain}"
    assert torch.equal(y.view(torch.uint8), again.view(torch.uint8))
