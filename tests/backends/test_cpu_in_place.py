"""Channels-last results whose channels fill vectors: tiles are computed in the output itself."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import transfuse
from transfuse.stages import add, group_norm, relu, softmax

LAST = torch.channels_last


def integers(*dims: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 3, dims, generator=generator).float()


def computed(x: Tensor, w: Tensor, *then: Any, **options: Any) -> Tensor:
    return transfuse.conv_transpose(x, w, then=[*then], backend="cpu", **options)


# One tile for each sample, tiles of whole rows, tiles of parts of one long row.
@pytest.mark.parametrize("space", [(3, 4), (40, 33), (1, 5000), (90, 1)])
@pytest.mark.parametrize("channels", [32, 64, 256])
@pytest.mark.parametrize(
    "options", [{}, {"stride": 2, "padding": 1, "output_padding": 1}, {"dilation": 2}]
)
def test_tiles(isa: str, space: tuple[int, int], channels: int, options: dict[str, int]) -> None:
    x, w = integers(3, 4, *space).to(memory_format=LAST), integers(4, channels, 3, 3, seed=1)
    bias, all_of_it = integers(channels, seed=2), integers(1, channels, 1, 1, seed=3)
    expected = F.conv_transpose2d(x.double(), w.double(), bias.double(), **options)
    y = computed(x, w, bias=bias, **options)
    assert y.is_contiguous(memory_format=LAST)
    assert y.double().equal(expected)
    assert (
        computed(x, w, relu(), add(all_of_it), bias=bias, **options)
        .double()
        .equal(expected.relu() + all_of_it)
    )


@pytest.mark.parametrize("stage", [softmax("channels"), group_norm(4)])
def test_stages_that_see_more_than_an_element(isa: str, stage: Any) -> None:
    x, w = integers(3, 4, 9, 10).to(memory_format=LAST), integers(4, 32, 2, 2, seed=1)
    y = computed(x, w, stage, stride=2)
    planar = computed(x.contiguous(), w, stage, stride=2)
    assert y.is_contiguous(memory_format=LAST)
    torch.testing.assert_close(y, planar, rtol=0, atol=1e-6)


def test_volumes(isa: str) -> None:
    last = torch.channels_last_3d
    x, w = integers(2, 4, 20, 21, 22).to(memory_format=last), integers(4, 32, 2, 2, 2, seed=1)
    for stride in (1, 2):
        y = computed(x, w, stride=stride)
        assert y.is_contiguous(memory_format=last)
        assert y.double().equal(F.conv_transpose3d(x.double(), w.double(), stride=stride))


def test_outputs_with_gaps_between_rows_keep_what_lies_there(isa: str) -> None:
    x, w = integers(2, 4, 30, 30).to(memory_format=LAST), integers(4, 32, 2, 2, seed=1)
    whole = torch.full((2, 32, 61, 62), 7.0).to(memory_format=LAST)
    out = whole[:, :, :60, :60]
    computed(x, w, stride=2, out=out)
    assert out.equal(F.conv_transpose2d(x, w, stride=2))
    out.fill_(7.0)
    assert bool((whole == 7).all())


@pytest.mark.parametrize("space", [(3, 4), (40, 33), (1, 700)])
@pytest.mark.parametrize(("groups", "channels"), [(1, 1), (1, 2), (1, 3), (3, 1), (2, 4)])
@pytest.mark.parametrize(
    "options", [{}, {"stride": 2, "padding": 1, "output_padding": 1}, {"stride": 3, "dilation": 2}]
)
def test_few_channels(
    isa: str, space: tuple[int, int], groups: int, channels: int, options: dict[str, int]
) -> None:
    """Their tiles have no room between positions, unless a step goes over them by vectors."""
    x = integers(3, groups * 5, *space).to(memory_format=LAST)
    w, bias = integers(groups * 5, channels, 3, 3, seed=1), integers(groups * channels, seed=2)
    expected = F.conv_transpose2d(x, w, bias, groups=groups, **options)
    room = torch.full((3, *expected.shape[2:], groups * channels + 2), 77.0)
    apart = room[..., 1:-1].permute(0, 3, 1, 2)  # positions that do not follow one another
    for out in (None, torch.full_like(expected, 77, memory_format=LAST), apart):
        assert computed(x, w, bias=bias, groups=groups, out=out, **options).equal(expected)
    assert (room[..., 0] == 77).all()
    assert (room[..., -1] == 77).all()
    assert computed(x, w, relu(), bias=bias, groups=groups, **options).equal(expected.relu())
    half = computed(x.bfloat16(), w.bfloat16(), groups=groups, **options)
    assert half.equal(F.conv_transpose2d(x, w, groups=groups, **options).bfloat16())
