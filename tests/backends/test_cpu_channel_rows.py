"""Groups of few output channels, in rows so long that each is computed by itself."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import transfuse
from transfuse.stages import add, avg_pool, relu, scale

PLAIN = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)


def integers(*dims: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 3, dims, generator=generator).float()


def right(x: Tensor, w: Tensor, groups: int | None = None, **options: Any) -> None:
    """The core gives the definition's integers; where no number is given, channels are groups."""
    options["groups"] = groups or x.shape[1]
    y = transfuse.conv_transpose(x, w, backend="cpu", **options)
    expected = PLAIN[x.dim() - 3](x.double(), w.double(), **options)
    assert y.double().equal(expected)


@pytest.mark.parametrize("channels", [1, 5, 16, 33])
@pytest.mark.parametrize("width", [32, 47, 1030, 2600])
@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        (3, {"padding": 1}),
        (12, {"stride": 2}),
        (5, {"stride": 3, "dilation": 4, "padding": 3, "output_padding": 2}),
        (2, {"stride": 5, "output_padding": 4}),
        (16, {"stride": 8, "padding": 4}),
        (70, {"stride": 64}),
        (3, {"stride": 65}),
        (3, {"dilation": 40, "padding": 50}),
    ],
)
def test_rows(isa: str, channels: int, width: int, kernel: int, options: dict[str, int]) -> None:
    right(integers(2, channels, width), integers(channels, 1, kernel, seed=1), **options)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("padding", [0, 2])
def test_planes_and_volumes(isa: str, stride: int, padding: int) -> None:
    options = {"stride": stride, "padding": padding}
    right(integers(2, 6, 5, 40), integers(6, 1, 4, 4, seed=1), **options)
    right(integers(1, 17, 3, 4, 35), integers(17, 1, 3, 5, 4, seed=1), **options)
    right(integers(2, 3, 9, 40)[:, :, ::2, 2:38], integers(3, 1, 4, 4, seed=1), **options)


@pytest.mark.parametrize(
    "options",
    [
        {"stride": (1, 2)},  # of an odd width one phase has a position more
        {"stride": 3, "dilation": (2, 3), "padding": (4, 2)},
        {"dilation": (9, 1)},  # rows far apart
    ],
)
@pytest.mark.parametrize("width", [33, 2049])
def test_rows_that_outputs_share(isa: str, options: dict[str, Any], width: int) -> None:
    """Copies of rows serve outputs that follow, but none of another channel, sample or strip."""
    right(integers(2, 5, 13, width), integers(5, 1, 3, 5, seed=1), **options)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_types(isa: str, dtype: torch.dtype) -> None:
    x, w = integers(2, 7, 700).to(dtype), integers(7, 1, 6, seed=1).to(dtype)
    right(x, w, stride=2)


@pytest.mark.parametrize("stride", [1, 2])
def test_steps(isa: str, stride: int) -> None:
    """One value for all, by channel, by position, and of every value."""
    x, w, bias = integers(2, 5, 1100), integers(5, 1, 4, seed=1), integers(5, seed=2)
    plain = F.conv_transpose1d(x, w, bias, stride, groups=5)
    by_position, whole = integers(1, 1, plain.shape[2], seed=3), integers(*plain.shape, seed=4)
    by_sample = integers(2, 5, 1, seed=5)

    def chain(*then: Any) -> Tensor:
        return transfuse.conv_transpose(
            x, w, bias, stride=stride, groups=5, then=[*then], backend="cpu"
        )

    assert chain(scale(3.0), relu()).equal((plain * 3).relu())
    assert chain(relu(), scale(by_sample)).equal(plain.relu() * by_sample)
    assert chain(scale(by_position), add(whole)).equal(plain * by_position + whole)


def test_a_pool_before(isa: str) -> None:
    x, w = integers(1, 5, 300) * 2, integers(5, 1, 3, seed=1)
    y = transfuse.conv_transpose(x, w, before=[avg_pool(2)], groups=5, stride=2, backend="cpu")
    assert y.equal(F.conv_transpose1d(F.avg_pool1d(x, 2), w, stride=2, groups=5))


def test_weights_that_are_not_finite_reach_only_what_they_meet(isa: str) -> None:
    x, w = integers(1, 5, 200) + 3, integers(5, 1, 6, seed=1)
    w[0, 0, 0], w[3, 0, 5] = torch.inf, torch.nan
    y = transfuse.conv_transpose1d(x, w, stride=2, groups=5, backend="cpu")
    expected = F.conv_transpose1d(x.double(), w.double(), stride=2, groups=5)
    assert y.double().nan_to_num(77).equal(expected.nan_to_num(77))


@pytest.mark.parametrize(("groups", "ins", "outs"), [(1, 5, 2), (3, 4, 1), (2, 7, 4), (1, 1, 3)])
@pytest.mark.parametrize("width", [260, 1500])
@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        (1, {}),
        (3, {"padding": 1}),
        (4, {"stride": 2, "padding": 1}),
        (3, {"stride": 3, "dilation": 4, "output_padding": 2}),
    ],
)
def test_groups_of_few_channels(
    isa: str, groups: int, ins: int, outs: int, width: int, kernel: int, options: dict[str, int]
) -> None:
    x = integers(2, groups * ins, 3, width)
    w = integers(groups * ins, outs, 2, kernel, seed=1)
    horizontal = {name: (0 if "padding" in name else 1, n) for name, n in options.items()}
    right(x, w, groups, **horizontal)
    bias = integers(groups * outs, seed=2)
    y = transfuse.conv_transpose2d(x, w, bias, groups=groups, backend="cpu")
    assert y.equal(F.conv_transpose2d(x, w, bias, groups=groups))


def test_many_channels_in_short_strips(isa: str) -> None:
    """Of 300 channels no strip of a few positions fits the first-level cache."""
    right(integers(1, 300, 1300), integers(300, 1, 5, seed=1), 1, stride=2)
    right(integers(1, 600, 2600), integers(600, 2, 3, seed=1), 2, padding=2)


def test_outputs_that_no_input_of_their_row_meets(isa: str) -> None:
    """Some of a stride's, and all where the taps lie on either side of a row."""
    right(integers(1, 6, 2, 300), integers(6, 3, 2, 1, seed=1), 2, stride=3, output_padding=2)
    right(integers(1, 2, 33), integers(2, 1, 2, seed=1), dilation=100, padding=40)


@pytest.mark.parametrize("options", [{}, {"stride": 2, "padding": 1}, {"stride": 7}])
def test_long_rows_in_parts(isa: str, options: dict[str, int]) -> None:
    """Several threads share them; the last part has the phases of one position more."""
    right(integers(2, 3, 17001), integers(3, 1, 5, seed=1), **options)
    right(integers(1, 12, 9001), integers(12, 2, 4, seed=1), 2, **options)
