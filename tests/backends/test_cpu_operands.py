"""Tensors that maps read beside the values, and inputs and outputs in float32 beside 16 bits."""

from math import prod

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from transfuse import Chain, Problem, conv_transpose
from transfuse.backends.cpu import Cpu, lower
from transfuse.plan import fused
from transfuse.stages import Stage, batch_norm, group_norm, max_pool, pointwise, relu, softmax
from transfuse.stages import conv_transpose as convolution

gate = pointwise(lambda x, skip, mask: x * mask + skip)
LINES = [
    "n2 ci3 co5 i7x9 k3 s2 p1",
    "n2 ci4 co18 i6x70 k3 p1",
    "n3 ci2 co40 i33 k4 s2",
    "n1 ci2 co7 i4x5x6 k2 s2",
    "n2 ci4 co12 i5x6 k3 p1 g2",
    "n2 ci2 co600 i3x4 k2",
]


def integers(*dims: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randint(-3, 4, dims).to(dtype)


def called(line: str, dtype: torch.dtype, then: list[Stage], last: bool = False) -> Tensor:
    """The chain on integers; its tensors are drawn in a fixed order."""
    torch.manual_seed(3)
    p = Problem.parse(line)
    x, w = integers(*p.input.dims, dtype=dtype), integers(*p.weight, dtype=dtype)
    if last and p.rank > 1:
        x = x.to(memory_format=torch.channels_last if p.rank == 2 else torch.channels_last_3d)
    options = {"stride": p.stride, "padding": p.padding, "groups": p.groups, "backend": "cpu"}
    found = conv_transpose(x, w, then=then, **options)
    wide = [
        each.with_parameters({k: v.double() for k, v in each.parameters() if isinstance(v, Tensor)})
        for each in then
    ]
    y = conv_transpose(x.double(), w.double(), then=wide, **options | {"backend": "eager"})
    torch.testing.assert_close(found.double(), y.to(dtype).double(), rtol=1e-4, atol=1e-4)
    if all(stage.exact for stage in then):
        assert torch.equal(found, y.to(dtype))
    return found


def shapes(dims: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Every way to be 1 along some axes, the full shape first."""
    found = []
    for bits in range(2 ** len(dims)):
        found.append(tuple(1 if bits >> at & 1 else size for at, size in enumerate(dims)))
    return found


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_every_way_to_broadcast(line: str, dtype: torch.dtype) -> None:
    dims = Chain(convolution(Problem.parse(line).rank)).shapes(Problem.parse(line))[-1].dims
    for shape in shapes(dims):
        skip = integers(*shape, dtype=dtype)
        called(line, dtype, [gate(skip, integers(dims[1], dtype=dtype)), relu()])


@pytest.mark.parametrize("line", LINES)
def test_strides_of_any_kind(line: str) -> None:
    dims = Chain(convolution(Problem.parse(line).rank)).shapes(Problem.parse(line))[-1].dims
    skip = integers(*dims).movedim(1, -1).contiguous().movedim(-1, 1)  # channels last
    mask = integers(*reversed(dims)).permute(*reversed(range(len(dims))))
    wide = integers(*dims[:-1], 2 * dims[-1])[..., ::2]
    for last in (False, True):
        called(line, torch.float32, [gate(skip, mask), gate(wide, skip)], last)


@pytest.mark.parametrize("line", LINES[:4])
def test_around_norms_and_pools(line: str) -> None:
    """Where values wait in the output or in memory, and after windows."""
    p = Problem.parse(line)
    n, c, *space = Chain(convolution(p.rank)).shapes(p)[-1].dims
    full, part = integers(n, c, *space), integers(n, 1, *(s // 2 for s in space))
    norm = batch_norm(weight=integers(c), bias=integers(c), training=True)
    called(line, torch.float32, [norm, gate(full, integers(n, c, *(1,) * p.rank)), relu()])
    called(line, torch.float32, [gate(full, full), norm, relu()])
    called(line, torch.float32, [group_norm(1), gate(full, integers(1, *space))])
    called(line, torch.float32, [max_pool(2), gate(part, part)])
    called(line, torch.float32, [softmax("space"), gate(full, 2.0)])


def test_the_core_serves_them_in_one_pass() -> None:
    problem = Problem.parse(LINES[0])
    dims = Chain(convolution(2)).shapes(problem)[-1].dims
    stage = gate("skip", 2.0).fitted({"skip": dims}, 2)
    plan = fused(Chain(convolution(2), stage), problem)
    assert lower.refusal(plan.chain, plan.chain.shapes(problem)) == ""
    assert [each.op for each in lower.epilogue(plan)] == ["map"]


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize(
    "line", ["n2 ci3 co5 i7x9 k3 s2 p1", "n2 ci6 co20 i12 k4 s2", "n4 ci3 co5 i1 k1"]
)
def test_input_and_output_in_float32_beside_16_bits(line: str, dtype: str) -> None:
    """Neither the input nor the result is rounded: float32 holds these integers, 16 bits do not."""
    problem = Problem.parse(f"{line} {dtype}")
    chain = Chain(convolution(problem.rank), relu())
    kind = {"fp16": torch.float16, "bf16": torch.bfloat16}[dtype]
    x = torch.randint(-4000, 4000, problem.input.dims).float() * 3 + 1
    w = integers(*problem.weight, dtype=kind)
    out = torch.full(chain.shapes(problem)[-1].dims, torch.nan)
    found = Cpu().run(chain, problem, x, w, {}, out)
    plain = getattr(F, f"conv_transpose{problem.rank}d")
    exact = plain(x.double(), w.double(), stride=problem.stride, padding=problem.padding).relu()
    assert found is out
    assert torch.equal(found.double(), exact)
    assert prod(found.shape)
