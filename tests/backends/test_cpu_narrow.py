"""Groups of so few output channels that the core takes vectors of positions, or of groups."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from transfuse import conv_transpose

GROUPS = [(1, 1), (1, 2), (1, 3), (1, 4), (3, 1), (3, 2)]
"""Groups, and output channels of each."""


def integers(*dims: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 3, dims, generator=generator).float()


def both(x: Tensor, weight: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """The core's result, and the definition's."""
    y = conv_transpose(x, weight, backend="cpu", **options)
    return y.double(), F.conv_transpose2d(x.double(), weight.double(), **options)


@pytest.mark.parametrize("width", [1, 16, 17, 33, 70])
@pytest.mark.parametrize(("groups", "channels"), GROUPS)
@pytest.mark.parametrize("stride", [1, 2])
def test_rows_of_any_length(isa: str, groups: int, channels: int, stride: int, width: int) -> None:
    x = integers(2, groups * 5, 3, width)
    weight = integers(groups * 5, channels, 4, 4, seed=1)
    y, expected = both(x, weight, stride=stride, padding=1, groups=groups)
    assert torch.equal(y, expected)


@pytest.mark.parametrize(("groups", "channels"), GROUPS)
def test_weights_that_are_not_finite_reach_only_what_they_meet(
    isa: str, groups: int, channels: int
) -> None:
    x = integers(1, groups * 2, 3, 37) + 3
    weight = integers(groups * 2, channels, 3, 5, seed=1)
    weight[0, 0, 0, 0], weight[-1, -1, 2, 4] = torch.inf, torch.nan
    y, expected = both(x, weight, padding=(0, 3), dilation=(1, 2), groups=groups)
    assert torch.equal(y.nan_to_num(77), expected.nan_to_num(77))
    assert y.isfinite().any()
    assert not y.isfinite().all()


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("channels", [5, 8, 16, 33, 70])
@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        (3, {"padding": 1}),
        (4, {"stride": 2, "padding": 1}),
        (3, {"stride": 3, "dilation": 2, "padding": 4}),
        (2, {"stride": 5, "output_padding": 3}),
    ],
)
def test_depthwise(
    isa: str, kernel: int, options: dict[str, int], channels: int, last: bool
) -> None:
    form = torch.channels_last if last else torch.contiguous_format
    x = integers(2, channels, 5, 11).contiguous(memory_format=form)
    y, expected = both(x, integers(channels, 1, kernel, kernel, seed=1), groups=channels, **options)
    assert torch.equal(y, expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_depthwise_in_other_types(isa: str, dtype: torch.dtype) -> None:
    x, weight = integers(2, 20, 7, 6).to(dtype), integers(20, 1, 3, 3, seed=1).to(dtype)
    y, expected = both(x, weight, stride=2, groups=20)
    assert torch.equal(y, expected)


def test_depthwise_weights_that_are_not_finite_reach_only_what_they_meet(isa: str) -> None:
    x, weight = integers(1, 20, 3, 9) + 3, integers(20, 1, 3, 5, seed=1)
    weight[0, 0, 0, 0], weight[-1, -1, 2, 4] = torch.inf, torch.nan
    y, expected = both(x, weight, padding=(0, 3), dilation=(1, 2), groups=20)
    assert torch.equal(y.nan_to_num(77), expected.nan_to_num(77))
    assert y[:, 1:-1].isfinite().all()
    assert not y.isfinite().all()
