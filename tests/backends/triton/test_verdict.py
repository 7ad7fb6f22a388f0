"""Where the GPU backend knows cuDNN to be faster, and says so."""

from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from transfuse.backends.triton import Triton
from transfuse.chain import Chain
from transfuse.problem import Problem
from transfuse.stages import conv_transpose, sigmoid


@pytest.mark.parametrize(
    ("line", "then", "yields"),
    [
        ("n8 ci64 co64 i16x16 k4 s2 p1 fp16 channels_last cuda", (), True),
        ("n8 ci64 co64 i16x16 k2 s2 bf16 channels_last cuda", (), True),
        ("n1 ci512 co512 i1x1 k4 s2 p1 fp16 cuda", (), True),  # contiguous and channels_last
        ("n1 ci64 co128 i248x216 k1 fp16 cuda", (), True),  # a product of matrices
        ("n1 ci64 co32 i24x24x24 k2 s2 fp16 channels_last cuda", (), True),
        ("n64 ci100 co512 i1x1 k4 fp16 cuda", (), False),
        ("n8 ci64 co32 i16x16 k4 s2 p1 fp16 channels_last cuda", (), False),
        ("n8 ci64 co64 i16x16 k4 s2 p1 fp16 cuda", (), False),
        ("n8 ci64 co64 i16x16 k4 s2 p1 fp32 channels_last cuda", (), False),
        ("n8 ci64 co64 i16x16 k4 s2 p1 fp16 channels_last cuda", (sigmoid(),), False),
    ],
)
def test_bare_layers_that_lie_as_cudnn_reads_them(
    line: str, then: tuple[Any, ...], yields: bool
) -> None:
    problem = Problem.parse(line)
    verdict = Triton().verdict(Chain(conv_transpose(problem.rank), *then), problem)
    assert verdict.ok, verdict.reason
    assert bool(verdict.yields) == yields
