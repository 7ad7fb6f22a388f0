"""Every module of torch's that ``FusedConvTranspose`` takes, beside itself behind torch's layer."""

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import Module

from tests.nn.beside import near, stepped
from transfuse.nn import FusedConvTranspose2d
from transfuse.nn.fused import FUSED
from transfuse.nn.torch_modules import MAKERS, RANKS, READERS

CHANNELS = 8
ROWS_TRIED: list[Callable[[], Module]] = [
    nn.Identity,
    nn.ReLU,
    lambda: nn.ReLU(inplace=True),
    nn.ReLU6,
    nn.LeakyReLU,
    lambda: nn.LeakyReLU(0.3),
    nn.PReLU,
    lambda: nn.PReLU(CHANNELS, init=0.4),
    lambda: nn.ELU(0.7),
    nn.SELU,
    lambda: nn.CELU(0.7),
    nn.GELU,
    lambda: nn.GELU("tanh"),
    nn.SiLU,
    nn.Mish,
    nn.Sigmoid,
    nn.LogSigmoid,
    nn.Tanh,
    lambda: nn.Softplus(2.0, 1.0),
    nn.Softsign,
    lambda: nn.Hardtanh(-0.5, 0.75),
    nn.Hardsigmoid,
    nn.Hardswish,
    lambda: nn.Hardshrink(0.25),
    lambda: nn.Softshrink(0.25),
    nn.Tanhshrink,
    lambda: nn.Threshold(0.1, -2.0),
    lambda: nn.Softmax(1),
    lambda: nn.Softmax(-1),
    lambda: nn.LogSoftmax(dim=1),
    nn.Softmax2d,
    lambda: nn.BatchNorm1d(CHANNELS),
    lambda: nn.BatchNorm2d(CHANNELS, eps=0.01, momentum=0.3),
    lambda: nn.BatchNorm2d(CHANNELS, momentum=None),
    lambda: nn.BatchNorm2d(CHANNELS, affine=False),
    lambda: nn.BatchNorm3d(CHANNELS, track_running_stats=False),
    lambda: nn.InstanceNorm1d(CHANNELS),
    lambda: nn.InstanceNorm2d(CHANNELS, affine=True, eps=0.01),
    lambda: nn.InstanceNorm3d(CHANNELS, track_running_stats=True, momentum=0.2),
    lambda: nn.GroupNorm(2, CHANNELS, eps=0.01),
    lambda: nn.GroupNorm(4, CHANNELS, affine=False),
    lambda: nn.LayerNorm((9, 7)),
    lambda: nn.LayerNorm(7, elementwise_affine=False),
    lambda: nn.LayerNorm(7, bias=False),
    lambda: nn.RMSNorm((9, 7)),
    lambda: nn.RMSNorm(7, eps=0.1),
    lambda: nn.MaxPool1d(3, 2, padding=1),
    lambda: nn.MaxPool2d((2, 3), dilation=2, ceil_mode=True),
    lambda: nn.MaxPool3d(2),
    lambda: nn.AvgPool1d(3, 2, padding=1, count_include_pad=False),
    lambda: nn.AvgPool2d(3, 2, padding=1, divisor_override=5),
    lambda: nn.AvgPool3d(2, ceil_mode=True),
    lambda: nn.LPPool1d(2, 3),
    lambda: nn.LPPool2d(2, 3, stride=2),
    lambda: nn.LPPool3d(2, 2),
    lambda: nn.AdaptiveAvgPool1d(3),
    lambda: nn.AdaptiveAvgPool2d((None, 2)),
    lambda: nn.AdaptiveAvgPool3d(2),
    lambda: nn.AdaptiveMaxPool1d(3),
    lambda: nn.AdaptiveMaxPool2d(2),
    lambda: nn.AdaptiveMaxPool3d((2, None, 1)),
    nn.Flatten,
    lambda: nn.Flatten(2),
    lambda: nn.PixelShuffle(2),
]


def shown(make: Callable[[], Module]) -> str:
    return repr(make())


def test_every_row_is_tried() -> None:
    assert {type(make()) for make in ROWS_TRIED} == MAKERS.keys()


def both(make: Callable[[], Module]) -> tuple[Module, nn.Sequential, Tensor]:
    """Ours, torch's with the same parameters, and an input."""
    torch.manual_seed(7)
    after = make().double()
    with torch.no_grad():
        for each in after.parameters():
            each.normal_()
    rank = RANKS.get(type(after), 2)
    layer = FUSED[rank](4, CHANNELS, 3, stride=2, then=[deepcopy(after)], dtype=torch.float64)
    conv = getattr(nn, f"ConvTranspose{rank}d")(4, CHANNELS, 3, stride=2, dtype=torch.float64)
    conv.load_state_dict(layer.state_dict(), strict=False)
    sizes = {1: (5,), 2: (4, 3), 3: (3, 2, 2)}[rank]
    x = torch.randn(3, 4, *sizes, dtype=torch.float64)
    return layer, nn.Sequential(conv, after), x


@pytest.mark.parametrize("make", ROWS_TRIED, ids=shown)
def test_means_the_same(make: Callable[[], Module]) -> None:
    """Values, gradients and what is kept, in training twice and then in evaluation."""
    ours, theirs, x = both(make)
    # In these two torch multiplies gradients of float64 by a constant of float32.
    within = 1e-6 if isinstance(theirs[1], nn.CELU | nn.Hardsigmoid) else 1e-11
    for factor in (1, 3):
        assert near(stepped(ours, factor * x), stepped(theirs, factor * x), within)
    for each in (ours, theirs):
        each.eval()
    assert near(stepped(ours, x), stepped(theirs, x), within)
    with torch.no_grad():
        assert (ours(x) - theirs(x)).abs().max() <= 1e-11
    kept = theirs[1].state_dict()
    assert {f"then.0.{name}" for name in kept} | {"weight", "bias"} == set(ours.state_dict())
    for name, expected in kept.items():
        found = ours.state_dict()[f"then.0.{name}"]
        assert found.dtype == expected.dtype
        assert (found - expected).abs().max() <= 1e-12


class Louder(nn.ReLU):
    """A ReLU by its class, and not by what it computes."""

    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (nn.Dropout(0.5), "torch.nn.modules.dropout.Dropout"),
        (nn.SyncBatchNorm(8), "SyncBatchNorm"),
        (nn.LazyBatchNorm2d(), "LazyBatchNorm2d"),
        (nn.Sequential(nn.ReLU()), "Sequential"),
        (nn.Conv2d(8, 8, 1), "Conv2d"),
        (Louder(), "Louder"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_others_are_refused_by_name(given: Module, name: str) -> None:
    with pytest.raises(TypeError, match=rf"{name} has no stage of the same meaning; .*ReLU"):
        FusedConvTranspose2d(4, 8, 3, then=[given])
    with pytest.raises(TypeError, match=name):
        FusedConvTranspose2d(4, 8, 3, before=[given])


def test_what_was_changed_into_another_module_is_refused() -> None:
    layer = FusedConvTranspose2d(4, 8, 3, then=[nn.BatchNorm2d(8)])
    layer = nn.SyncBatchNorm.convert_sync_batchnorm(layer)
    with pytest.raises(TypeError, match="SyncBatchNorm has no stage"):
        layer(torch.randn(2, 4, 3, 3))


def test_indices_are_refused() -> None:
    for pool in (nn.MaxPool2d(2, return_indices=True), nn.AdaptiveMaxPool2d(2, True)):
        with pytest.raises(ValueError, match="return_indices=True gives two tensors"):
            FusedConvTranspose2d(4, 8, 3, then=[pool])


def test_a_module_of_another_number_of_axes_is_refused() -> None:
    with pytest.raises(ValueError, match="2 by the class, 3 by BatchNorm3d"):
        FusedConvTranspose2d(4, 8, 3, then=[nn.BatchNorm3d(8)])
    with pytest.raises(ValueError, match="3 by the class, 2 by PixelShuffle"):
        FUSED[3](4, 8, 3, then=[nn.PixelShuffle(2)])


def test_the_table_is_read_by_class_alone() -> None:
    assert Louder not in READERS
    assert READERS[nn.ReLU] is READERS[nn.ReLU]
