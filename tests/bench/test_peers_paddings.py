"""Peers on paddings that torch has no options for: right, or they say why not."""

import pytest
import torch

from transfuse.bench.peers import Missing, peers
from transfuse.bench.peers.base import Work
from transfuse.bench.peers.jax_xla import jitted
from transfuse.bench.precision import PRECISIONS
from transfuse.chain import Chain
from transfuse.problem import Problem
from transfuse.reference import scatter
from transfuse.stages import conv_transpose

# A problem line, and whether ONNX can say it: it pads by nothing negative.
LINES = {
    "n2 ci3 co4 i5 k4 s2 p1 op-1": True,
    "n1 ci2 co3 i4x5 k3 s2x3 p2x0 op2x-3": True,
    "n1 ci2 co4 i3x4x3 k3x2x3 s1 p2x1x0 op1x-1x-2 g2": True,
    "n1 ci2 co3 i4 k3 s2 p1 op5": False,
    "n1 ci2 co3 i4x4 k3 s2 p-1x0": False,
}


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("name", ["torch eager", "onnxruntime", "OpenVINO", "JAX/XLA"])
def test_right_or_refused(name: str, line: str) -> None:
    problem = Problem.parse(line)
    chain = Chain(conv_transpose(problem.rank, "bias"))
    shapes = problem.input.dims, problem.weight, (problem.out_channels,)
    generator = torch.Generator().manual_seed(0)
    x, w, b = (torch.randint(-3, 4, shape, generator=generator).float() for shape in shapes)
    work = Work(chain, problem, PRECISIONS["fp32"], x, w, {"bias": b})
    refusal = ""
    with torch.inference_mode():
        try:
            runner = jitted(work) if name == "JAX/XLA" else peers()[name].build(work)
        except Missing as missing:
            refusal = str(missing)
        if "is not installed" in refusal:
            pytest.skip(refusal)
        if not LINES[line] and name in ("onnxruntime", "OpenVINO"):
            assert "ONNX has no padding of" in refusal
        else:
            assert not refusal
            y = runner.collect(runner.run(runner.adapt(x)))
            assert torch.equal(y, scatter(problem, x, w, b))
