"""Initial weights: linear interpolation, and outputs that begin equal between two inputs."""

from math import prod

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from transfuse import nn
from transfuse.nn.init import bilinear_, icnr_

LAYERS = {rank: getattr(nn, f"ConvTranspose{rank}d") for rank in (1, 2, 3)}


def ramp(sizes: tuple[int, ...], steps: tuple[int, ...], shift: float = 0.0) -> Tensor:
    """``sum step * place`` over the axes."""
    total = torch.zeros(sizes, dtype=torch.float64)
    for axis, (size, step) in enumerate(zip(sizes, steps, strict=True)):
        places = (torch.arange(size, dtype=torch.float64) + shift) * step
        total = total + places.view(-1, *(1,) * (len(sizes) - axis - 1))
    return total


@pytest.mark.parametrize("rank", LAYERS)
@pytest.mark.parametrize("stride", [2, 4])
@pytest.mark.parametrize("channels", [(2, 2, 1), (3, 2, 1), (4, 4, 4), (4, 6, 2)])
def test_bilinear_keeps_a_ramp(channels: tuple[int, int, int], stride: int, rank: int) -> None:
    """Exactly: the steps are multiples of the stride to its number of axes."""
    inputs, outputs, groups = channels
    layer = LAYERS[rank](
        inputs, outputs, 2 * stride, stride, stride // 2, groups=groups, bias=False,
        dtype=torch.float64,
    )  # fmt: skip
    assert bilinear_(layer.weight, groups) is layer.weight
    sizes, steps = (6, 5, 4)[:rank], (8 * 4**rank, 16 * 4**rank, 24 * 4**rank)[:rank]
    x = torch.stack([(c + 1) * ramp(sizes, steps) for c in range(inputs)])
    y = layer(x)
    assert y.shape[1:] == tuple(n * stride for n in sizes)
    # Output o lies at input (o + 1/2) / stride - 1/2.
    fine = ramp(tuple(n * stride for n in sizes), tuple(s // stride for s in steps), 0.5)
    expected = fine - sum(steps) / 2
    inside = (slice(stride // 2, -(stride // 2)),) * rank
    per_group, kept = outputs // groups, inputs // groups
    for channel in range(outputs):
        group, place = divmod(channel, per_group)
        factor = group * kept + place + 1 if place < kept else 0
        assert y[channel][inside].equal(factor * expected[inside])


def test_bilinear_is_interpolate() -> None:
    x = torch.randn(2, 3, 6, 5, dtype=torch.float64)
    layer = nn.ConvTranspose2d(3, 3, 4, 2, 1, groups=3, bias=False, dtype=torch.float64)
    bilinear_(layer.weight, 3)
    expected = F.interpolate(x, scale_factor=2, mode="bilinear")
    assert (layer(x) - expected)[:, :, 1:-1, 1:-1].abs().max() <= 1e-12


def test_bilinear_of_odd_and_even_kernels() -> None:
    cases = {
        1: [1.0],
        2: [0.5, 0.5],
        3: [0.5, 1.0, 0.5],
        4: [0.25, 0.75, 0.75, 0.25],
        7: [0.25, 0.5, 0.75, 1.0, 0.75, 0.5, 0.25],
    }
    for size, taps in cases.items():
        weight = bilinear_(torch.full((2, 3, size), torch.nan))
        assert weight[0, 0].tolist() == weight[1, 1].tolist() == taps
        weight[0, 0] = weight[1, 1] = 0
        assert not weight.any()
    wide = bilinear_(torch.empty(1, 1, 3, 4, dtype=torch.bfloat16))
    assert wide[0, 0].tolist() == [[a * b for b in cases[4]] for a in cases[3]]


@pytest.mark.parametrize("rank", LAYERS)
@pytest.mark.parametrize(
    ("stride", "kernel", "padding"), [(2, 4, 1), (3, 3, 0), (2, 2, 0), (1, 3, 1)]
)
@pytest.mark.parametrize("groups", [1, 2])
def test_icnr_begins_constant_between_inputs(
    stride: int, kernel: int, padding: int, groups: int, rank: int
) -> None:
    layer = LAYERS[rank](4, 6, kernel, stride, padding, groups=groups, dtype=torch.float64)
    ordinary: list[Tensor] = []

    def drawn(weight: Tensor) -> None:
        weight.copy_(torch.randint(-4, 5, weight.shape))
        ordinary.append(weight.clone())

    assert icnr_(layer.weight, (stride,) * rank, groups, drawn) is layer.weight
    assert ordinary[0].shape == (6, 4 // groups, *(kernel // stride,) * rank)
    x = torch.randint(-4, 5, (2, 4, *(5, 4, 3)[:rank])).double()
    with torch.no_grad():
        layer.bias.zero_()
        y = layer(x)
    # The convolution by what was drawn, upsampled to nearest neighbours, less the padding.
    reach = kernel // stride - 1
    convolve = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    coarse = convolve(x, ordinary[0].flip(*range(2, rank + 2)), padding=reach, groups=groups)
    for axis in range(2, rank + 2):
        coarse = coarse.repeat_interleave(stride, axis)
        size = coarse.shape[axis]
        coarse = coarse.narrow(axis, padding, size - 2 * padding)
    assert y.equal(coarse)


def test_icnr_draws_for_the_ordinary_convolution() -> None:
    """Kaiming's deviation is that of as many inputs as an output sums."""
    torch.manual_seed(0)
    weight = icnr_(torch.empty(64, 32, 4, 6), (2, 3), groups=2)
    inputs = 64 // 2 * prod((2, 2))
    assert abs(float(weight.std()) * (inputs / 2) ** 0.5 - 1) < 0.05
    torch.manual_seed(0)
    u = torch.nn.init.kaiming_normal_(torch.empty(64, 32, 2, 2))
    assert weight[0, :, 0, 0].equal(u[:32, 0, 0, 0])
    assert weight[32, :, 3, 5].equal(u[32:, 0, 1, 1])


def test_what_cannot_be_filled_is_refused() -> None:
    kept = torch.ones(4, 4, 3, 4)
    with pytest.raises(ValueError, match=r"a kernel of \[3, 4\] and stride=\[2, 2\]"):
        icnr_(kept, 2)
    with pytest.raises(ValueError, match="stride"):
        icnr_(kept, 0)
    for fill in (lambda w, g: icnr_(w, 1, g), bilinear_):
        with pytest.raises(ValueError, match="groups=3 must be positive and divide the 4 input"):
            fill(kept, 3)
        with pytest.raises(ValueError, match=r"3, 4 or 5 dimensions .* got \[4, 4\]"):
            fill(torch.ones(4, 4), 1)
    assert kept.eq(1).all()


def test_on_meta_and_as_parameters_in_training() -> None:
    assert icnr_(torch.empty(2, 2, 4, device="meta"), 2).is_meta
    assert bilinear_(torch.empty(2, 2, 4, device="meta")).is_meta
    weight = torch.nn.Parameter(torch.empty(2, 2, 4))
    for filled in (icnr_(weight, 2), bilinear_(weight)):
        assert filled.requires_grad
        assert filled.is_leaf
