"""HiFi-GAN's generator (Kong et al. 2020): a mel spectrogram becomes a waveform.

With ``torch.nn.utils.weight_norm``, torch's older form, as the published weights have it.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import weight_norm

SLOPE = 0.1


class ResBlock(nn.Module):
    """Dilated convolutions in pairs, each pair with a residual."""

    def __init__(self, channels: int, kernel: int, dilations: tuple[int, ...]) -> None:
        super().__init__()
        self.convs1 = nn.ModuleList(
            weight_norm(nn.Conv1d(channels, channels, kernel, dilation=d, padding="same"))
            for d in dilations
        )
        self.convs2 = nn.ModuleList(
            weight_norm(nn.Conv1d(channels, channels, kernel, padding="same")) for _ in dilations
        )

    def forward(self, x: Tensor) -> Tensor:
        for c1, c2 in zip(self.convs1, self.convs2, strict=True):
            xt = c1(F.leaky_relu(x, SLOPE))
            xt = c2(F.leaky_relu(xt, SLOPE))
            x = xt + x
        return x


class Generator(nn.Module):
    """The defaults are those of the paper's V1."""

    def __init__(
        self,
        bands: int = 80,
        channels: int = 512,
        rates: tuple[int, ...] = (8, 8, 2, 2),
        kernels: tuple[int, ...] = (16, 16, 4, 4),
        block_kernels: tuple[int, ...] = (3, 7, 11),
        dilations: tuple[int, ...] = (1, 3, 5),
    ) -> None:
        super().__init__()
        self.num_kernels = len(block_kernels)
        self.num_upsamples = len(rates)
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
                self.resblocks.append(ResBlock(channels, size, dilations))
        self.conv_post = weight_norm(nn.Conv1d(channels, 1, 7, 1, padding=3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv_pre(x)
        for i in range(self.num_upsamples):
            x = F.leaky_relu(x, SLOPE)
            x = self.ups[i](x)
            xs = self.resblocks[i * self.num_kernels](x)
            for j in range(1, self.num_kernels):
                xs += self.resblocks[i * self.num_kernels + j](x)
            x = xs / self.num_kernels
        x = F.leaky_relu(x)
        x = self.conv_post(x)
        return torch.tanh(x)


def small() -> Generator:
    return Generator(5, 8, rates=(8, 2), kernels=(16, 4), block_kernels=(3, 5), dilations=(1, 3))
