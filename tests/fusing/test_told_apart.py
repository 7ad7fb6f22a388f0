"""Calls and states that differ in little, and must not be taken for the same."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import transfuse
from tests.fusing.alike import drawn, expect_alike, made


class Laid(nn.Module):
    """Decides by how its input lies in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(4, 3, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.up(x))
        return y if x.is_contiguous() else y * x.stride(1)


def test_layouts_of_one_size() -> None:
    fused, twin = transfuse.fuse(made(Laid)), made(Laid)
    x = drawn(2, 4, 3, 3)
    strided = drawn(2, 4, 3, 6)[..., ::2]
    for _ in range(2):
        for each in (x, x.contiguous(memory_format=torch.channels_last), strided):
            assert torch.allclose(fused(each), twin(each), atol=1e-12)
    assert len(vars(fused)["forward"].versions) > 1


class Scaled(nn.Module):
    """Numbers of a call and of a module, and functions in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose1d(4, 3, 2, stride=2)
        self.gain: float = 1.0
        self.gains = [1.0]
        self.steps: list[Callable[[Tensor], Tensor]] = []

    def forward(self, x: Tensor, gain: float = 1.0) -> Tensor:
        y = torch.relu(self.up(x))
        for step in self.steps:
            y = step(y)
        return y * gain * self.gain * self.gains[0]


def _by_argument(model: nn.Module, gain: float) -> tuple[Any, ...]:
    return (gain,)


def _by_attribute(model: nn.Module, gain: float) -> tuple[Any, ...]:
    model.gain = gain  # type: ignore[assignment]
    return ()


def _by_item(model: nn.Module, gain: float) -> tuple[Any, ...]:
    model.gains[0] = gain  # type: ignore[index, operator]
    return ()


@pytest.mark.parametrize("given", [_by_argument, _by_attribute, _by_item])
def test_zeros_of_both_signs(given: Callable[[nn.Module, float], tuple[Any, ...]]) -> None:
    fused, x = transfuse.fuse(made(Scaled)), drawn(2, 4, 5)
    for gain in (0.0, -0.0, 0.0, -0.0):
        y = fused(x, *given(fused, gain))
        assert (torch.signbit(y) == (math.copysign(1, gain) < 0)).all()


def test_a_number_that_is_none_is_one_state() -> None:
    """NaN does not equal itself, and yet it is no other number in the next call."""
    fused, x = transfuse.fuse(made(Scaled)), drawn(2, 4, 5)
    counts = set()
    for _ in range(3):
        assert fused(x, float("nan")).isnan().all()
        counts.add(len(vars(fused)["forward"].versions))
    assert len(counts) == 1


class Step:
    def __init__(self, gain: float) -> None:
        self.gain = gain

    def __call__(self, y: Tensor) -> Tensor:
        return y * self.gain


def test_a_list_filled_anew() -> None:
    """The new object may well be where the old one was."""
    fused, twin, x = transfuse.fuse(made(Scaled)), made(Scaled), drawn(2, 4, 5)
    for gain in (2.0, 3.0, 4.0):
        for model in (twin, fused):
            model.steps.clear()  # type: ignore[operator, union-attr]
            model.steps.append(Step(gain))  # type: ignore[operator, union-attr]
        expect_alike(fused, twin, x)
