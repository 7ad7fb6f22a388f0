"""What the core does where rows are short, groups have few channels, or the kernel has one tap."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from transfuse import conv_transpose
from transfuse.stages import Stage, add, relu, softmax, sum

CONVOLUTIONS = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def integers(*dims: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 3, dims, generator=generator).float()


def definition(x: Tensor, weight: Tensor, **options: Any) -> Tensor:
    found: Tensor = CONVOLUTIONS[x.dim() - 2](x.double(), weight.double(), **options)
    return found


@pytest.mark.parametrize("width", [2, 11, 13, 30])
@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        (5, {"padding": 2}),
        (5, {"padding": 4, "dilation": 2}),
        (3, {"dilation": 3}),
        (4, {"stride": 2, "padding": 1}),
        (5, {"stride": 3}),
    ],
)
def test_taps_beyond_the_ends_of_a_row(
    isa: str, width: int, kernel: int, options: dict[str, int]
) -> None:
    x, weight = integers(2, 6, 9, width), integers(6, 20, kernel, kernel, seed=1)
    y = conv_transpose(x, weight, backend="cpu", **options)
    assert torch.equal(y.double(), definition(x, weight, **options))


@pytest.mark.parametrize("channels", [64, 72, 130])
@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_four_vectors_of_channels_where_rows_are_shortest(
    isa: str, width: int, channels: int
) -> None:
    x, weight = integers(1, 70, 3, 4, width), integers(70, channels, 2, 3, 3, seed=1)
    bias = integers(channels, seed=2)
    y = conv_transpose(x, weight, bias, padding=1, backend="cpu")
    expected = definition(x, weight, padding=1) + bias.view(-1, 1, 1, 1)
    assert torch.equal(y.double(), expected)


def test_values_that_are_not_finite_reach_only_what_they_meet(isa: str) -> None:
    x, weight = integers(1, 4, 3, 10), integers(4, 17, 5, 5, seed=1)
    x[0, 0, 0, 0], x[0, 1, 2, 9] = torch.inf, torch.nan
    options: dict[str, Any] = {"padding": 4, "dilation": 2}
    y = conv_transpose(x, weight, backend="cpu", **options)
    expected = definition(x, weight, **options)
    assert torch.equal(y.double().nan_to_num(77), expected.nan_to_num(77))
    assert y.isfinite().any()


@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("channels", [5, 8])
@pytest.mark.parametrize("then", [(), (relu(),), (sum("channels", keepdim=True),)], ids=str)
def test_groups_of_few_channels(
    isa: str, groups: int, channels: int, then: tuple[Stage, ...]
) -> None:
    x = integers(2, groups * 3, 7, 13)
    weight = integers(groups * 3, channels, 3, 3, seed=1)
    y = conv_transpose(x, weight, stride=2, groups=groups, then=list(then), backend="cpu")
    expected = definition(x, weight, stride=2, groups=groups)
    for stage in then:
        expected = stage.apply(expected, {})
    assert torch.equal(y.double(), expected)


@pytest.mark.parametrize("groups", [1, 3, 4])
def test_softmax_over_groups_of_few_channels(isa: str, groups: int) -> None:
    x, weight = integers(2, groups * 3, 7, 13) / 4, integers(groups * 3, 7, 3, 3, seed=1)
    y = conv_transpose(x, weight, groups=groups, then=[softmax("channels")], backend="cpu")
    expected = definition(x, weight, groups=groups).softmax(1)
    assert torch.allclose(y.double(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dims", [(3, 5, 9), (7, 33), (1, 4, 1)], ids=str)
@pytest.mark.parametrize("apart", [False, True], ids=["dense", "rows apart"])
@pytest.mark.parametrize("spread", [False, True], ids=["whole", "broadcast"])
def test_a_kernel_of_one_tap(isa: str, dims: tuple[int, ...], apart: bool, spread: bool) -> None:
    rank = len(dims)
    whole = integers(2, 6, *dims[:-1], dims[-1] + apart)
    x, weight = whole[..., : dims[-1]], integers(6, 10, *(1,) * rank, seed=1)
    other = integers(2, 10, *(1 if spread and axis else n for axis, n in enumerate(dims)), seed=2)
    y = conv_transpose(x, weight, then=[add(other), relu()], backend="cpu")
    expected = (definition(x, weight) + other).relu()
    assert torch.equal(y.double(), expected)


@pytest.mark.parametrize("padding", [0, 1, 2, 3])
@pytest.mark.parametrize(("stride", "dilation"), [(1, 3), (2, 3), (2, 5)])
@pytest.mark.parametrize("planes", [3, 4, 7])
def test_tiles_of_the_same_rows_that_meet_other_planes(
    isa: str, planes: int, stride: int, dilation: int, padding: int
) -> None:
    # Dilation passes over planes, over others in the next tile, which finds the copy of this one.
    x, weight = integers(2, 2, planes, 4, 4), integers(2, 17, 4, 3, 3, seed=1)
    options: dict[str, Any] = {
        "stride": (stride, 2, 2),
        "dilation": (dilation, 1, 1),
        "padding": (padding, 0, 0),
    }
    y = conv_transpose(x, weight, backend="cpu", **options)
    assert torch.equal(y.double(), definition(x, weight, **options))
