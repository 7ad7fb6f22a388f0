"""Encodec's decoder (Défossez et al. 2022): codes of 75 frames a second become a waveform.

It is causal: a transposed convolution's surplus samples are all cut off at the right.
"""

import math

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm


class Conv(nn.Module):
    """A convolution that sees no later sample; what is before the first is mirrored."""

    def __init__(self, channels: int, out_channels: int, kernel: int) -> None:
        super().__init__()
        self.conv = weight_norm(nn.Conv1d(channels, out_channels, kernel))
        self.before = kernel - 1

    def forward(self, x: Tensor) -> Tensor:
        if self.before == 0:
            return self.conv(x)
        # A mirror image needs more samples than it has itself.
        short = max(0, self.before + 1 - x.shape[-1])
        x = F.pad(F.pad(x, (0, short)), (self.before, 0), mode="reflect")
        return self.conv(x[..., : x.shape[-1] - short])


class ConvTranspose(nn.Module):
    """``rate`` samples for each one: kernel - stride too many, which are trimmed."""

    def __init__(self, channels: int, out_channels: int, rate: int, at_right: float = 1.0) -> None:
        super().__init__()
        self.convtr = weight_norm(nn.ConvTranspose1d(channels, out_channels, 2 * rate, rate))
        self.right = math.ceil(rate * at_right)
        self.left = rate - self.right

    def forward(self, x: Tensor) -> Tensor:
        y = self.convtr(x)
        return y[..., self.left : y.shape[-1] - self.right]


class ResnetBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.ELU(),
            Conv(channels, channels // 2, 3),
            nn.ELU(),
            Conv(channels // 2, channels, 1),
        )
        self.shortcut = Conv(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.shortcut(x) + self.block(x)


class LSTM(nn.Module):
    """Two layers along time, with a residual."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(channels, channels, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(2, 0, 1)
        y, _ = self.lstm(x)
        return (y + x).permute(1, 2, 0)


class Decoder(nn.Module):
    """The defaults are those of the 24 kHz model."""

    def __init__(
        self, codes: int = 128, filters: int = 32, rates: tuple[int, ...] = (8, 5, 4, 2)
    ) -> None:
        super().__init__()
        channels = filters * 2 ** len(rates)
        layers: list[nn.Module] = [Conv(codes, channels, 7), LSTM(channels)]
        for rate in rates:
            layers += [
                nn.ELU(),
                ConvTranspose(channels, channels // 2, rate),
                ResnetBlock(channels // 2),
            ]
            channels //= 2
        self.model = nn.Sequential(*layers, nn.ELU(), Conv(channels, 1, 7))

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)


def small() -> Decoder:
    return Decoder(codes=4, filters=4, rates=(4, 3, 2))
