"""BigVGAN's generator (Lee et al. 2023): HiFi-GAN with periodic activations, free of aliasing.

Each activation stands between a twofold upsampling and a downsampling by a low-pass filter, and
that upsampling is a depthwise transposed convolution: there are far more of these than layers.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

TAPS = 12
"""Of the low-pass filter."""


def low_pass(cutoff: float = 0.25, half_width: float = 0.3) -> Tensor:
    """A sinc under a Kaiser window, summing to 1."""
    attenuation = 2.285 * (TAPS // 2 - 1) * math.pi * 4 * half_width + 7.95
    if attenuation > 50:
        beta = 0.1102 * (attenuation - 8.7)
    else:
        beta = 0.5842 * (attenuation - 21) ** 0.4 + 0.07886 * (attenuation - 21)
    window = torch.kaiser_window(TAPS, periodic=False, beta=beta)
    at = torch.arange(-TAPS // 2, TAPS // 2) + 0.5
    taps = 2 * cutoff * window * torch.sinc(2 * cutoff * at)
    return (taps / taps.sum()).view(1, 1, TAPS)


class UpSample(nn.Module):
    """Twice as long."""

    filter: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("filter", low_pass())
        self.pad = TAPS // 2 - 1
        self.cut = self.pad * 2 + (TAPS - 2) // 2

    def forward(self, x: Tensor) -> Tensor:
        channels = x.shape[1]
        x = F.pad(x, (self.pad, self.pad), mode="replicate")
        kernel = self.filter.expand(channels, -1, -1)
        x = 2 * F.conv_transpose1d(x, kernel, stride=2, groups=channels)
        return x[..., self.cut : -self.cut]


class DownSample(nn.Module):
    """Half as long."""

    filter: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("filter", low_pass())

    def forward(self, x: Tensor) -> Tensor:
        channels = x.shape[1]
        x = F.pad(x, (TAPS // 2 - 1, TAPS // 2), mode="replicate")
        return F.conv1d(x, self.filter.expand(channels, -1, -1), stride=2, groups=channels)


class SnakeBeta(nn.Module):
    """x + sin(alpha x)^2 / beta, where alpha and beta are learnt by their logarithms."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        alpha = torch.exp(self.alpha.unsqueeze(0).unsqueeze(-1))
        beta = torch.exp(self.beta.unsqueeze(0).unsqueeze(-1))
        return x + (1.0 / (beta + 1e-9)) * torch.pow(torch.sin(x * alpha), 2)


class Activation(nn.Module):
    """Snake at twice the rate."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.upsample = UpSample()
        self.act = SnakeBeta(channels)
        self.downsample = DownSample()

    def forward(self, x: Tensor) -> Tensor:
        return self.downsample(self.act(self.upsample(x)))


class AMPBlock(nn.Module):
    """Dilated convolutions in pairs, an activation before each, a residual over each pair."""

    def __init__(self, channels: int, kernel: int, dilations: tuple[int, ...]) -> None:
        super().__init__()
        self.convs1 = nn.ModuleList(
            weight_norm(nn.Conv1d(channels, channels, kernel, dilation=d, padding="same"))
            for d in dilations
        )
        self.convs2 = nn.ModuleList(
            weight_norm(nn.Conv1d(channels, channels, kernel, padding="same")) for _ in dilations
        )
        self.activations = nn.ModuleList(Activation(channels) for _ in range(2 * len(dilations)))

    def forward(self, x: Tensor) -> Tensor:
        acts1, acts2 = self.activations[::2], self.activations[1::2]
        for c1, c2, a1, a2 in zip(self.convs1, self.convs2, acts1, acts2, strict=True):
            x = x + c2(a2(c1(a1(x))))
        return x


class BigVGAN(nn.Module):
    """The defaults are those of the paper's base model: 24 kHz, 100 bands."""

    def __init__(
        self,
        bands: int = 100,
        channels: int = 512,
        rates: tuple[int, ...] = (8, 8, 2, 2),
        kernels: tuple[int, ...] = (16, 16, 4, 4),
        block_kernels: tuple[int, ...] = (3, 7, 11),
        dilations: tuple[int, ...] = (1, 3, 5),
    ) -> None:
        super().__init__()
        self.num_kernels = len(block_kernels)
        self.conv_pre = weight_norm(nn.Conv1d(bands, channels, 7, 1, padding=3))
        self.ups = nn.ModuleList()
        self.resblocks = nn.ModuleList()
        for rate, kernel in zip(rates, kernels, strict=True):
            up = nn.ConvTranspose1d(
                channels, channels // 2, kernel, rate, padding=(kernel - rate) // 2
            )
            self.ups.append(weight_norm(up))
            channels //= 2
            for size in block_kernels:
                self.resblocks.append(AMPBlock(channels, size, dilations))
        self.activation_post = Activation(channels)
        self.conv_post = weight_norm(nn.Conv1d(channels, 1, 7, 1, padding=3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv_pre(x)
        for i, up in enumerate(self.ups):
            x = up(x)
            blocks = self.resblocks[i * self.num_kernels : (i + 1) * self.num_kernels]
            x = torch.stack([block(x) for block in blocks]).sum(0) / self.num_kernels
        return torch.tanh(self.conv_post(self.activation_post(x)))


def small() -> BigVGAN:
    return BigVGAN(5, 8, rates=(4, 2), kernels=(8, 4), block_kernels=(3,), dilations=(1, 3))
